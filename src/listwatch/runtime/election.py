"""The election of a manager: its lease or group, and what makes its elector."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from listwatch.client.client import Client
from listwatch.runtime.leader_election import LeaderElector, OpenLeaseClient
from listwatch.runtime.lease import ClientLeases, LeaseClient
from listwatch.runtime.sharing import ShareMember

if TYPE_CHECKING:
    from listwatch.runtime.candidate import ElectionEvent, LeaseTimings
    from listwatch.runtime.coordinated import Coordination


class Election:
    """Which lease a manager uses, and how.

    Args:
        election: the lease's name, or an elector; None or "" for none.
        sharing: the group's name, or a member, in place of an election.
        timings: of the lease; by default client-go's.
        labels: of the lease.
        coordination: let the server choose the leader where it can.

    Raises:
        ValueError: both an election and a group are given.
    """

    def __init__(
        self,
        election: str | LeaderElector | None,
        sharing: str | ShareMember | None,
        *,
        timings: "LeaseTimings | None",
        labels: Mapping[str, str] | None,
        coordination: "Coordination | None",
    ) -> None:
        if election is not None and sharing is not None:
            raise ValueError("give a Manager either leader_election= or sharing=, not both")
        self._chosen = (election or None) if sharing is None else sharing
        #: Whether replicas share the keys.
        self.shares = sharing is not None
        self._timings = timings
        self._labels = labels
        self._coordination = coordination

    @property
    def lease(self) -> str:
        """The lease of the election, or the group that shares the keys; empty for neither."""
        chosen = self._chosen
        if isinstance(chosen, ShareMember):
            return chosen.group
        return chosen.name if isinstance(chosen, LeaderElector) else chosen or ""

    @property
    def is_given(self) -> bool:
        """Whether an elector was made elsewhere, whose options can't change."""
        return isinstance(self._chosen, LeaderElector)

    @property
    def is_coordinated(self) -> bool:
        """Whether the server chooses the leader where it can."""
        chosen = self._chosen
        if isinstance(chosen, LeaderElector):
            return chosen.coordination is not None
        return bool(chosen) and not self.shares and self._coordination is not None

    def choose(self, lease: str) -> None:
        """Use another lease instead of an election or group; empty for no election."""
        if self.shares or lease != self.lease:
            self._chosen = lease or None
            self.shares = False

    def make(
        self,
        client: Client,
        namespace: str,
        *,
        tell: Callable[[Mapping[str, object], str], object],
        on_overrun: Callable[[], None] | None,
    ) -> LeaderElector | None:
        """Return the elector, or the member of the group; None for no election.

        Args:
            client: its configuration is that of the election's own client.
            namespace: of the lease.
            tell: called with the lease and a message when this process begins or stops to lead.
            on_overrun: see `LeaderElector`.
        """
        name = self._chosen
        if not isinstance(name, str):
            return name
        open_client = lease_client(client, namespace)
        if self.shares:
            return ShareMember(
                open_client,
                namespace=namespace,
                group=name,
                timings=self._timings,
                on_overrun=on_overrun,
            )
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
        }

        def report(event: "ElectionEvent") -> None:
            if event.type != "NewLeader":
                tell(lease, event.message)

        return LeaderElector(
            open_client,
            namespace=namespace,
            name=name,
            timings=self._timings,
            labels=self._labels,
            coordination=self._coordination,
            on_event=report,
            on_overrun=on_overrun,
        )


def lease_client(client: Client, namespace: str) -> OpenLeaseClient:
    """Return what opens a client of a namespace's leases, for the election's own event loop."""

    @contextlib.asynccontextmanager
    async def open_client() -> AsyncIterator[LeaseClient]:
        # A client belongs to one event loop, and the election has its own.
        async with Client.from_config(client.config) as own:
            yield ClientLeases(own, namespace)

    return open_client
