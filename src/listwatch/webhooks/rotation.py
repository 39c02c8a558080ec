"""Renewing certificates without a gap: the whole policy of one replica, without I/O.

A certificate serves only once every published bundle has its authority, and an authority leaves the
bundles only when it has expired. So whatever replicas do, in any order and with any delays, every
certificate that serves is one that API servers trust:

1. Who finds no certificate stores one. All replicas serve what is stored.
2. Well before it expires, the replica with the lease stores the next one beside it.
3. The same replica publishes both authorities.
4. When they have been published for a while, it stores that the next certificate serves.

The Secret is written only in the version that was read, and a bundle only in the version that was
read before the Secret: so nobody overwrites a bundle from an outdated Secret.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from listwatch.webhooks.certificates import EARLIER, Authority, ServingCertificate

#: The part of a certificate's lifetime after which the next one is made.
RENEWED_AFTER: Final = 2 / 3
#: Seconds after which every API server has noticed a published bundle.
SETTLE: Final = 60.0

Bundle = Sequence[Authority]


class Stored(msgspec.Struct, frozen=True):
    """What the replicas share.

    Attributes:
        serving: serves.
        next: serves later; its authority is to be published now.
    """

    serving: ServingCertificate
    next: ServingCertificate | None = None


class Step(msgspec.Struct, frozen=True):
    """What to do now.

    Attributes:
        store: store this first, and look again; None for nothing.
        bundle: what to publish, if this replica has the lease.
        serve: serve this from now on; None for no change.
    """

    store: Stored | None
    bundle: tuple[Authority, ...]
    serve: ServingCertificate | None


class Rotation:
    """One replica's part in the rotation.

    Args:
        names: host names and addresses that a certificate must have.
        make: makes a certificate; gets the time in seconds since 1970.
    """

    def __init__(self, names: Sequence[str], make: Callable[[float], ServingCertificate]) -> None:
        self._names = frozenset(names)
        self._make = make
        #: The certificate that this replica serves.
        self.serving: ServingCertificate | None = None
        self._trusted: tuple[Authority, float] | None = None

    def step(
        self,
        stored: Stored | None,
        bundles: Sequence[Bundle],
        *,
        leads: bool,
        time: float,
        now: float,
    ) -> Step:
        """Return what to do, and note what this replica serves.

        Args:
            stored: what the replicas share; None if there is nothing usable.
            bundles: of each published configuration, read before `stored`.
            leads: this replica has the lease.
            time: the wall clock, in seconds since 1970.
            now: the monotonic clock, in seconds.
        """
        if stored is None:
            # After the Secret's loss, bundles still trust what serves.
            kept = self.serving if self.serving and self._is_usable(self.serving, time) else None
            return Step(Stored(kept or self._make(time)), (), None)
        if leads and (changed := self._changed(stored, bundles, time, now)) is not None:
            return Step(changed, (), None)
        return Step(None, _bundle(stored, bundles, time), self._serve(stored, bundles))

    def _changed(
        self, stored: Stored, bundles: Sequence[Bundle], time: float, now: float
    ) -> Stored | None:
        serving, following = stored.serving, stored.next
        if following is None or not self._is_usable(following, time):
            self._trusted = None
            if self._is_due(serving, time):
                return Stored(serving, self._make(time))
            return None if following is None else Stored(serving)
        if not _is_trusted(following, bundles):
            self._trusted = None
            return None
        if self._trusted is None or self._trusted[0] != following.authority:
            self._trusted = (following.authority, now)
        settled = now - self._trusted[1] >= SETTLE
        # An expired certificate helps nobody, so its successor need not wait.
        return Stored(following) if settled or serving.not_after <= time else None

    def _serve(self, stored: Stored, bundles: Sequence[Bundle]) -> ServingCertificate | None:
        wanted = stored.serving
        if wanted == self.serving or not _is_trusted(wanted, bundles):
            return None
        self.serving = wanted
        return wanted

    def _is_usable(self, certificate: ServingCertificate, time: float) -> bool:
        return time < certificate.not_after and self._names <= set(certificate.names)

    def _is_due(self, certificate: ServingCertificate, time: float) -> bool:
        lifetime = certificate.not_after - certificate.not_before - EARLIER
        due = certificate.not_after - lifetime * (1 - RENEWED_AFTER)
        return time >= due or not self._is_usable(certificate, time)


def _is_trusted(certificate: ServingCertificate, bundles: Sequence[Bundle]) -> bool:
    """Return whether every configuration, if there are any, trusts a certificate."""
    return all(certificate.authority in bundle for bundle in bundles)


def _bundle(stored: Stored, bundles: Sequence[Bundle], time: float) -> tuple[Authority, ...]:
    """Return the stored authorities, and those published that a replica may still serve with."""
    wanted = [stored.serving.authority]
    if stored.next is not None:
        wanted.append(stored.next.authority)
    published = [authority for bundle in bundles for authority in bundle]
    kept = [one for one in published if one.ours and one.not_after > time]
    return tuple(dict.fromkeys([*wanted, *kept]))
