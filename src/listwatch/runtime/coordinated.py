"""Coordinated leader election (KEP-4355): the server chooses the leader among candidates.

Each candidate keeps a LeaseCandidate. The server's control plane pings the candidates, chooses one
by their strategy, and writes it into the Lease; the chosen one renews the Lease like any leader.
When a better candidate appears, the server marks it as preferred, and the leader stops. The rules
are those of client-go's `tools/leaderelection`. A server without LeaseCandidates gets a plain
election.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from listwatch.errors import NotFoundError, UnknownResourceError
from listwatch.printable import printable
from listwatch.runtime.api_time import micro_time
from listwatch.runtime.candidate import Candidate
from listwatch.runtime.lease import LeaseClient

_logger = logging.getLogger(__name__)

#: Seconds after which a LeaseCandidate is renewed without a ping (client-go `requeueInterval`).
_RENEW_SECONDS: Final = 300.0


class Coordination(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate tells the server that chooses the leader.

    Attributes:
        binary_version: of the program, as "1.2.3".
        emulation_version: the version that the program behaves like; by default the same.
        strategy: how the server chooses; it takes the strategy of the candidates with the newest
            binary.
    """

    binary_version: str
    emulation_version: str = ""
    strategy: Literal["OldestEmulationVersion"] = "OldestEmulationVersion"


class CoordinatedLeaseClient(LeaseClient, Protocol):
    """Reads and writes the Leases of one namespace, and its LeaseCandidates."""

    @property
    def candidates(self) -> LeaseClient:
        """The LeaseCandidates; raises `UnknownResourceError` if the server has none."""
        ...


class CoordinatedCandidate(Candidate):
    """A candidate that leads when the server has chosen it.

    Args:
        client: reads and writes the lease and the LeaseCandidate.
        coordination: what the server is told.
        options: those of `Candidate`.
    """

    def __init__(
        self, client: CoordinatedLeaseClient, coordination: Coordination, **options: Any
    ) -> None:
        super().__init__(client, **options)
        self._candidates = client.candidates
        self._coordination = coordination
        self._is_plain = False
        self._renewed_candidate_at = float("-inf")

    async def _attempt(self) -> None:
        """Keep the LeaseCandidate, and renew the lease if the server has given it to us."""
        if not self._is_plain:
            await self._keep_candidate()
        if self._is_plain:
            await super()._attempt()
            return
        try:
            lease = await self._request(self._client.get(self._name))
        except NotFoundError:
            return  # the server creates it
        self._observe(lease)
        preferred = str((lease.get("spec") or {}).get("preferredHolder") or "")
        holder = self._record.holder
        guard = self.guard
        if guard is not None and guard.is_leader:
            if holder != self._identity:
                guard.end(f"{printable(holder) or 'nobody'} holds the lease")
                return
            if preferred not in {"", self._identity}:
                guard.end(f"the server prefers {printable(preferred)}")
                return
        is_fresh = self._clock.now() < self._record_since + (
            self._record.duration or self._timings.lease_duration
        )
        if holder == self._identity and is_fresh and preferred in {"", self._identity}:
            await self._write(lease)

    def _is_ours(self, record: Any) -> bool:
        # The server writes the holder, so the times of its records are not ours.
        if self._is_plain:
            return super()._is_ours(record)
        return bool(record.holder == self._identity)

    async def _keep_candidate(self) -> None:
        """Create the LeaseCandidate, or answer the server's ping."""
        try:
            found = await self._request(self._candidates.get(self._identity))
        except UnknownResourceError:
            _logger.info("lease %s: the server chooses no leaders: a plain election", self._key)
            self._is_plain = True
            return
        except NotFoundError:
            body = {
                "kind": "LeaseCandidate",
                "metadata": {"name": self._identity, "namespace": self._namespace},
                "spec": self._spec("", None),
            }
            await self._request(self._candidates.create(body))
            self._renewed_candidate_at = self._clock.now()
            return
        spec = found.get("spec") or {}
        pinged = _time(spec.get("pingTime"))
        renewed = _time(spec.get("renewTime"))
        is_pinged = pinged is not None and (renewed is None or pinged > renewed)
        if is_pinged or self._clock.now() - self._renewed_candidate_at >= _RENEW_SECONDS:
            body = {**found.to_dict(), "spec": self._spec(str(spec.get("pingTime") or ""), pinged)}
            await self._request(self._candidates.update(body))
            self._renewed_candidate_at = self._clock.now()

    def _spec(self, ping_time: str, pinged: datetime | None) -> dict[str, Any]:
        told = self._coordination
        # The server compares both times, so a clock of ours that is behind must not matter.
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        renewed = now if pinged is None else max(now, pinged)
        spec = {
            "leaseName": self._name,
            "binaryVersion": told.binary_version,
            "emulationVersion": told.emulation_version or told.binary_version,
            "strategy": told.strategy,
            "renewTime": micro_time(renewed.timestamp()),
        }
        return spec | ({"pingTime": ping_time} if ping_time else {})


def _time(text: object) -> datetime | None:
    return msgspec.convert(text, datetime) if isinstance(text, str) and text else None
