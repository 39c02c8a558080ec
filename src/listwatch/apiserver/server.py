"""The whole server: created, started, restarted, stopped."""

import asyncio
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from listwatch.accepting import kept_from_others
from listwatch.apiserver.access.asked_rights import AskedRight, AskedRights
from listwatch.apiserver.access.auth import Access
from listwatch.apiserver.access.escalation import Escalation
from listwatch.apiserver.access.issued_tokens import IssuedTokens
from listwatch.apiserver.admission.policy_source import Policies
from listwatch.apiserver.admission.webhooks import Webhooks
from listwatch.apiserver.api.admission import EDITING, Gate
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.api.reviews import Reviews
from listwatch.apiserver.api.routes import Api
from listwatch.apiserver.api.subresources import Subresources
from listwatch.apiserver.api.writing import Writer
from listwatch.apiserver.bootstrap.objects import bootstrap
from listwatch.apiserver.controllers.conversions import Conversions
from listwatch.apiserver.controllers.definitions import CustomResources
from listwatch.apiserver.controllers.endings import Controllers
from listwatch.apiserver.controllers.policies import PolicyStatus
from listwatch.apiserver.http.faults import Faults
from listwatch.apiserver.http.listening import (
    CONNECTION_LIMIT,
    Listening,
    is_loopback,
    listen,
    url_of,
)
from listwatch.apiserver.http.request_log import RecordedRequest, RequestLog
from listwatch.apiserver.http.tls import TLS
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.cluster import StoredCluster, StoredConfiguration
from listwatch.apiserver.storage.registry import Registry
from listwatch.apiserver.storage.store import Entry, Snapshot, Storage, StorageStatistics
from listwatch.apiserver.user import User
from listwatch.apiserver.webhooks.client import Misbehaviour, Services, WebhookClient
from listwatch.clock import Clock
from listwatch.errors import ConfigError
from listwatch.schema.facts import ANY, facts

if TYPE_CHECKING:
    from listwatch.apiserver.admission.chain import Source
    from listwatch.apiserver.replica import Replica
    from listwatch.apiserver.storage.journal import SQLiteJournal
    from listwatch.apiserver.workloads.loop import RunningWorkloads
    from listwatch.apiserver.workloads.options import Workloads

_log = logging.getLogger(__name__)

_CLUSTER = "listwatch"
#: Written without PyYAML, which takes longer to load than the server to start.
_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: {name}
clusters:
- name: {name}
  cluster:{cluster}
users:
- name: {name}
  user:{user}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {name}
    namespace: default
preferences: {{}}
"""


class EmbeddedAPIServer:
    """An API server for Kubernetes clients, in this process, without nodes.

    An asynchronous context manager: it listens within `async with`. For one event loop; one
    instance may be started and stopped several times and keeps its objects.

    Args:
        host: the address to listen on.
        port: the port; 0 for a free one, which `restart` keeps.
        clock: dates objects and times watches.
        data: a file that keeps the objects; None keeps them in memory.
        tokens: the user of each token; None lets everybody do everything.
        controllers: run the garbage collector and the deletion of namespaces.
        workloads: create and run the pods of workloads, see `listwatch.testing.Workloads`; True for
            its defaults.
        history_limit: maximum changes kept for watches and exact lists.
        seed: makes uids, generated names and time-outs reproducible.
        backlog_limit: changes that may wait for the slow client of a watch.
        tls: encrypts connections, and authenticates client certificates. None for plain HTTP.
        test_api: serve the paths below /-/ for tests.
        connection_limit: open connections; more wait in the system's queue until others end.
        services: host and port of webhooks' services, by `NAMESPACE/NAME`, or a function of
            namespace, name and port that returns them. Other services are unreachable.

    Raises:
        ConfigError: at the start, the port is taken or the data is unusable.
        ValueError: a limit of connections below one.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        clock: Clock | None = None,
        data: Path | None = None,
        tokens: Mapping[str, User] | None = None,
        controllers: bool = True,
        workloads: "bool | Workloads" = False,
        history_limit: int = 100_000,
        seed: int | None = None,
        backlog_limit: int = 20_000,
        connection_limit: int = CONNECTION_LIMIT,
        test_api: bool = False,
        tls: TLS | None = None,
        services: Services | Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        local = is_loopback(host)
        if not local:
            _check_exposure(host, is_open=tokens is None and tls is None, test_api=test_api)
        if connection_limit < 1:
            raise ValueError(f"the limit of connections must be at least 1, not {connection_limit}")
        self._connection_limit = connection_limit
        self._tls = tls
        self.host = host
        self.port = port
        self._clock = clock if clock is not None else Clock()
        self._randomness = randomness = random.Random(seed)  # noqa: S311 - names, not secrets
        self.store = Storage(self._clock, history_limit=history_limit)
        self.table = ResourceTable(facts())
        self.registry = Registry(self.store, self._clock, randomness=randomness)
        self._reader = Reader(
            self.store,
            self.registry,
            self._clock,
            randomness=randomness,
            backlog_limit=backlog_limit,
        )
        #: the faults to inject, for tests
        self.faults = Faults(
            self._clock,
            random.Random(seed),  # noqa: S311 - as above, for the faults alone
        )
        self._snapshot: Snapshot | None = None
        self._replica: Replica | None = None
        self._restart: asyncio.Task[None] | None = None
        self._issued = IssuedTokens(self.store, self._clock)
        self.access = Access(
            self.store,
            tokens=tokens,
            certificates=tls is not None,
            anonymous=local,
            issued=self._issued,
        )
        self._tokens = tokens
        #: the admission of writes: policies, then webhooks
        self.admission: list[Source] = []
        self._escalation = Escalation(self.access, self.store, self.table)
        cluster = StoredCluster(self.store, self.table)
        configuration = StoredConfiguration(self.store)
        self.admission.append(Policies(cluster, configuration, self.access.answer, EDITING))
        self._more_services = services if callable(services) else None
        self._services = {} if services is None or callable(services) else dict(services)
        self._webhooks = WebhookClient(self._clock, self._find_service)
        self.admission.append(
            Webhooks(cluster, configuration, self.access.answer, EDITING, self._webhooks)
        )
        self._configurations = [
            self.store.bucket(f"admissionregistration.k8s.io/{kind}{what}")
            for kind in ("mutating", "validating")
            for what in ("webhookconfigurations", "admissionpolicybindings")
        ]
        self.api = self._api(self._reader)
        if test_api:
            from listwatch.apiserver.control import Control  # noqa: PLC0415 - seldom needed

            self.api.extra_paths["/-/"] = Control(self).handle
        self._journal: SQLiteJournal | None = None
        if data is not None:
            from listwatch.apiserver.storage import journal  # noqa: PLC0415 - as above

            self._journal = journal.SQLiteJournal(data)
            self._journal.load(self.store, self._entry)
            self.store.journal = self._journal
        stop_watches = self._reader.stop_watches
        self._conversions = Conversions(
            self.store, self.registry, self._webhooks, self._clock, stop_watches
        )
        self.custom_resources = CustomResources(
            self.table, self.registry, self.store, stop_watches, self._conversions
        )
        self._listening: Listening | None = None
        self._controllers = (
            Controllers(self.store, self.registry, self.table, self._clock, ends_pods=not workloads)
            if controllers
            else None
        )
        self._policy_status = (
            PolicyStatus(self.registry, self.store, cluster) if controllers else None
        )
        self._workloads = self._running_workloads(workloads) if workloads else None
        bootstrap(self.registry, self.table, "" if tls is None else tls.authority)

    def _api(self, reader: Reader) -> Api:
        writer = Writer(
            self.registry, reader, self._escalation, Gate(self.store, self.admission, self._clock)
        )
        return Api(
            self.table,
            self.registry,
            reader,
            writer,
            self.access,
            Subresources(self.registry, reader, writer, self._issued),
            Reviews(self.registry, writer, self.access),
            self.faults,
            self._clock,
            self._asks_webhooks,
        )

    def _running_workloads(self, given: "bool | Workloads") -> "RunningWorkloads":
        from listwatch.apiserver.workloads.loop import RunningWorkloads  # noqa: PLC0415 - seldom needed
        from listwatch.apiserver.workloads.options import Workloads  # noqa: PLC0415 - as above
        from listwatch.apiserver.workloads.writes import Writes  # noqa: PLC0415 - as above

        options = Workloads() if isinstance(given, bool) else given
        admit = Gate(self.store, self.admission, self._clock).of_server
        writes = Writes(self.registry, self.table, self._clock, admit)
        authority = "" if self._tls is None else self._tls.authority
        return RunningWorkloads(self.store, writes, self._clock, options, authority)

    def _find_service(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        found = self._services.get(f"{namespace}/{name}")
        if found is None and self._more_services is not None:
            return self._more_services(namespace, name, port)
        return found

    def fail_webhooks(self, how: Misbehaviour | None) -> None:
        """Let calls of all webhooks fail in this way from now on; None ends that."""
        self._webhooks.misbehave(how)

    def add_service(self, name: str, host: str, port: int) -> None:
        """Set the address of a webhook's service, named `NAMESPACE/NAME`."""
        self._services[name] = (host, port)

    def _asks_webhooks(self) -> bool:
        for bucket in self._configurations:
            if bucket.entries:
                return True
        return bool(self._conversions.ask)

    def _entry(self, bucket: str, data: bytes) -> Entry:
        obj = msgspec.json.decode(data)
        revision = int(obj["metadata"]["resourceVersion"])
        for resource in self.table:
            if resource.storage == bucket and resource.convert is None:
                return self.registry.entry(resource, obj, revision)
        # a custom resource, whose definition is loaded later
        group, _, name = bucket.partition("/")
        plain = APIResource(group, "", name, "", schema=ANY)
        return self.registry.entry(plain, obj, revision)

    # -- lifecycle ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to listen.

        Raises:
            ConfigError: it can't listen on the address.
        """
        if self._listening is not None:
            return
        context = None if self._tls is None else self._tls.context
        self._listening = await listen(
            self.api.handle,
            self.host,
            self.port,
            self._clock,
            context,
            connection_limit=self._connection_limit,
        )
        self.port = self._listening.port
        self.api.address = f"{self.host}:{self.port}"
        self.start_controllers()

    def start_controllers(self) -> None:
        """Start the controllers alone, for clients in this event loop that need no address."""
        if self._controllers is not None:
            self._controllers.start()
        if self._policy_status is not None:
            self._policy_status.start()
        if self._workloads is not None:
            self._workloads.start()
        self._conversions.start()

    async def stop(self) -> None:
        """Stop listening and end every watch normally; the objects stay."""
        restart, self._restart = self._restart, None
        if restart is not None:
            restart.cancel()
            await asyncio.gather(restart, return_exceptions=True)  # it has logged its exception
        await self._halt()
        if self._replica is not None:
            await self._replica.stop()

    async def _halt(self) -> None:
        listening, self._listening = self._listening, None
        if listening is None:
            return
        if self._controllers is not None:
            self._controllers.stop()
        if self._policy_status is not None:
            await self._policy_status.stop()
        if self._workloads is not None:
            await self._workloads.stop()
        await listening.stop_accepting()
        for stream in list(self._reader.streams):
            stream.stop()
        # let the streams write their ends before their connections close
        for _ in range(3):
            await asyncio.sleep(0)
        await listening.close()
        await self._conversions.stop()
        await self._webhooks.close()

    async def restart(self, *, downtime: float = 0.0) -> None:
        """Stop and start again on the same port, with the same objects.

        Args:
            downtime: seconds during which connections are refused.
        """
        await self._halt()
        if downtime > 0:
            with kept_from_others(self.host, self.port):
                await self._clock.sleep(downtime)
        await self.start()

    def restart_soon(self, *, downtime: float = 0.0) -> None:
        """Restart after the response of the current request is written."""
        if self._restart is None or self._restart.done():
            # keep a reference until the task ends or `stop` ends it
            self._restart = asyncio.create_task(self._logged_restart(downtime))

    async def _logged_restart(self, downtime: float) -> None:
        try:
            await self.restart(downtime=downtime)
        except ConfigError as error:
            _log.error("the server did not restart: %s", error)
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
        self.close()

    def close(self) -> None:
        """Release the data file; the server can't be started again. Harmless without a file."""
        if self._journal is not None:
            self._journal.close()

    # -- for tests ---------------------------------------------------------------------------

    @property
    def withhold_bookmarks(self) -> bool:
        """Whether watches get no bookmarks except the one that ends the initial events."""
        return self._reader.withhold_bookmarks

    @withhold_bookmarks.setter
    def withhold_bookmarks(self, on: bool) -> None:
        self._reader.withhold_bookmarks = on
        for stream in self._reader.streams:
            stream.withhold_bookmarks = on

    def send_bookmarks(self) -> None:
        """Send a bookmark now to every watch that requested them."""
        for stream in self._reader.streams:
            stream.send_bookmark()

    def cut_watches(self) -> int:
        """Break the connection of every watch; return how many there were."""
        streams = list(self._reader.streams)
        for stream in streams:
            stream.cut()
        return len(streams)

    def record_requests(self, limit: int = 10_000) -> None:
        """Record requests from now on, and discard earlier records.

        Args:
            limit: number of last requests to keep; 0 to record none.

        Raises:
            ValueError: a negative limit.
        """
        if limit < 0:
            raise ValueError(f"the limit of recorded requests must not be negative, but is {limit}")
        log = RequestLog(limit) if limit else None
        self.api.request_log = log
        if self.api.lagging is not None:
            self.api.lagging.request_log = log

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests since `record_requests`, in order of arrival."""
        log = self.api.request_log
        return [] if log is None else log.requests()

    def record_rights(self) -> None:
        """Record from now on which rights are asked for; discard earlier records."""
        self.access.asked = AskedRights()

    @property
    def asked_rights(self) -> list[AskedRight]:
        """The rights asked for since `record_rights`, each once."""
        return [] if self.access.asked is None else self.access.asked.rights()

    def limit_in_flight(self, limit: int | None) -> None:
        """Answer requests beyond a limit with 429, like a real server's flow control.

        Args:
            limit: maximum concurrent requests except watches; None for no limit.

        Raises:
            ValueError: a negative limit.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"the limit of requests must not be negative, but is {limit}")
        self.faults.in_flight_limit = limit

    def issue_certificate(self, *, expired: bool = False) -> None:
        """Use another server certificate from the same CA for new connections.

        Args:
            expired: use an expired one, which clients refuse.

        Raises:
            ValueError: the server did not create its certificate.
        """
        if self._tls is None or self._tls.issue is None:
            raise ValueError("the server made no certificates: start it with tls=True")
        self._tls.issue(expired)

    def expire_client_certificates(self, on: bool = True) -> None:  # noqa: FBT001, FBT002 - clear without a keyword
        """Answer requests with a client certificate with 401, as if it had expired, or stop it.

        Like a real server, which checks the time at each request, on open connections too.

        Raises:
            ValueError: the server accepts no client certificates.
        """
        if self._tls is None or not self._tls.context.verify_mode:
            raise ValueError("the server takes no client certificates: start it with tls=True")
        self.access.client_certificates_expired = on

    def take_snapshot(self) -> int:
        """Keep the current objects for `rewind`; return their revision."""
        self._snapshot = self.store.snapshot()
        return self._snapshot.revision

    def rewind(self, revision: int | None = None) -> None:
        """Go back in time, like a restore from a backup: resource versions repeat.

        Cuts all watches, because a real server would have been down.

        Args:
            revision: a revision still in the history; None for the last snapshot.

        Raises:
            ValueError: there is no such state, or a data file is in use.
        """
        if self._journal is not None:
            raise ValueError("a server with a data file can't go back in time")
        if revision is not None:
            state = self.store.snapshot_at(revision)
        elif self._snapshot is not None:
            state = self._snapshot
        else:
            raise ValueError("name a revision, or take a snapshot before")
        self.cut_watches()
        self.stale_replica(False)
        if self._replica is not None:
            self._replica.catch_up()
        self.store.restore(state.revision, state.revision, state.entries)
        self._reader.forget()
        self.custom_resources.refresh()
        if self._controllers is not None:
            self._controllers.reset()
        if self._policy_status is not None:
            self._policy_status.start()
        if self._workloads is not None:
            self._workloads.reset()

    def stale_replica(self, on: bool = True) -> None:  # noqa: FBT001, FBT002 - clear without a keyword
        """Answer from now on like a replica that has fallen behind, or catch up.

        Reads that may be stale return the state at this moment, and watches get no changes.
        Consistent reads and writes continue.
        """
        self._reader.set_stale(self.store.revision if on else None)

    @property
    def replica(self) -> "Replica":
        """A second API server on the same store, which can fall behind this one."""
        if self._replica is None:
            from listwatch.apiserver.replica import Replica  # noqa: PLC0415 - seldom needed

            reader = Reader(
                self.store,
                self.registry,
                self._clock,
                randomness=self._randomness,
                streams=self._reader.streams,
            )
            api = self._api(reader)
            context = None if self._tls is None else self._tls.context
            self._replica = Replica(self.store, reader, api, self.host, self._clock, context)
            self.api.lagging = api
            api.request_log = self.api.request_log
        return self._replica

    @property
    def workloads(self) -> "RunningWorkloads":
        """The simulation of workloads, which runs pods and makes chosen ones fail.

        Raises:
            ValueError: the server was created without `workloads`.
        """
        if self._workloads is None:
            raise ValueError("this server runs no pods: make it with workloads=True")
        return self._workloads

    # -- for users -----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The server's URL, such as http://127.0.0.1:34567."""
        return url_of(self.host, self.port, "http" if self._tls is None else "https")

    def kubeconfig(self) -> str:
        """Return a kubeconfig for this server, as YAML, with the first token if there are any."""
        user: dict[str, str] = {}
        cluster = {"server": self.url}
        if self._tls is not None:
            cluster |= self._tls.cluster_fields()
            user |= self._tls.user_fields()
        if self._tokens and not user:
            user["token"] = next(iter(self._tokens))
        return _KUBECONFIG.format(name=_CLUSTER, cluster=_block(cluster), user=_block(user))

    def compact(self, revision: int | None = None) -> None:
        """Discard the history up to a revision, or all of it: older watches get 410."""
        self.store.compact(self.store.revision if revision is None else revision)

    def statistics(self) -> StorageStatistics:
        """Return the store's current statistics."""
        return self.store.statistics()


def _check_exposure(host: str, *, is_open: bool, test_api: bool) -> None:
    """Refuse to let everybody on the network do everything.

    Raises:
        ConfigError: they could.
    """
    if is_open:
        raise ConfigError(
            f"on {host} everybody who reaches this machine could do everything: name a token "
            "file or certificates, or listen on 127.0.0.1"
        )
    if test_api:
        raise ConfigError(
            f"on {host} everybody who reaches this machine could control the server by its "
            "test API, which asks nobody who they are: listen on 127.0.0.1"
        )


def _block(fields: Mapping[str, str]) -> str:
    """Return a mapping as YAML, after its key."""
    texts = [f"    {key}: {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
    return "\n".join(["", *texts]) if texts else " {}"
