"""The limits in time of one watch."""

import math

from listwatch.cache.reflector_machine import Fault
from listwatch.clock import Clock, Timeout


class Watchdog(Timeout):
    """Ends its body when a peer is silent for too long, or a while after an event was lost.

    As any `Timeout`, it raises `TimeoutError` from the `async with` statement; `fault` says which
    of the two it was. The timer is set anew only when it fires, so that a batch of events costs
    one assignment.

    Args:
        clock: time.
        silence: how long nothing may be heard, in seconds.
    """

    __slots__ = ("_heard", "_silence", "_stale_at", "fault")

    def __init__(self, clock: Clock, silence: float) -> None:
        super().__init__(clock, silence)
        self._silence = silence
        self._heard = clock.now()
        self._stale_at = math.inf
        self.fault = Fault.SILENT

    @property
    def is_stale(self) -> bool:
        """Whether an event was lost."""
        return self._stale_at < math.inf

    @property
    def silence(self) -> float:
        """How long nothing may be heard at present, in seconds."""
        return self._silence

    def heard(self, now: float) -> None:
        """Note a sign of life, at a time of the clock."""
        self._heard = now

    def allow(self, silence: float) -> None:
        """Set the silence allowed from now on, in seconds."""
        if silence != self._silence:
            self._silence = silence
            self._rearm()

    def end_in(self, seconds: float) -> None:
        """Note that an event was lost, and end in so many seconds unless that is decided."""
        if not self.is_stale:
            self._stale_at = self._clock.now() + seconds
            self._rearm()

    def _rearm(self) -> None:
        due = min(self._heard + self._silence, self._stale_at)
        self.postpone(max(0.0, due - self._clock.now()))

    def _expire(self) -> None:
        now = self._clock.now()
        if now >= self._stale_at:
            self.fault = Fault.STALE
        elif now < self._heard + self._silence:
            self._rearm()
            return
        super()._expire()
