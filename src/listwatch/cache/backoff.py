"""How long to wait before the next try."""

import random

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that double from `base` to `cap` seconds, each shortened by up to `jitter` of itself.

    With the defaults, requests that are each preceded by their delay number at most 9 in the
    first minute and 3 a minute later, and nobody waits longer than 30 s. client-go
    (`tools/cache/reflector.go`) has the same base and cap but lengthens by the jitter, up to 60 s.
    Stateless: who waits counts. Safe to share.

    Attributes:
        base: seconds of the first delay.
        cap: seconds that no delay exceeds.
        jitter: 0 to 1, the part of a delay that chance may take away.
    """

    base: float = 0.8
    cap: float = 30.0
    jitter: float = 0.25

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after so many failures before this one."""
        # 2 ** 40 is far beyond any cap; a larger power would overflow a float in time.
        nominal = min(self.cap, self.base * 2.0 ** min(failures, 40))
        return nominal * (1.0 - self.jitter * rng.random())
