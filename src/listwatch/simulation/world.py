"""One simulated world: a server, the processes of a program, a scenario, and what went wrong."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from listwatch.apiserver.access.asked_rights import TEST_CLIENT
from listwatch.apiserver.http.request_info import RequestInfo
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client, PatchType
from listwatch.errors import ListWatchError, NotFoundError
from listwatch.objects import Object
from listwatch.runtime.leading import LeadershipLostError
from listwatch.simulation import faults as kinds
from listwatch.simulation.faults import FAULTS, Boundary, Plan, Point
from listwatch.simulation.journal import Entry, Journal, Lane
from listwatch.simulation.loop import SimulationError, VirtualLoop
from listwatch.simulation.network import Handle, MemoryConnections
from listwatch.simulation.oracles import (
    Invariant,
    Outcome,
    RequestInvariant,
    SentRequest,
    Violation,
    compare,
    left_behind,
    verdict_of,
)
from listwatch.simulation.processes import CONFIG, MakeApp, Process
from listwatch.simulation.state import QUIET, Mask, State, end_state, resource_of
from listwatch.simulation.wire import ProcessWire, ScenarioWire, Sent

if TYPE_CHECKING:
    from listwatch.apiserver.storage.store import Bucket, StoredChange
    from listwatch.apiserver.workloads.options import Workloads

#: Seconds without a change after which the world has settled: longer than a manager waits for the
#: caches to have its writes.
QUIET_SECONDS: Final = 15.0
#: Seconds after the end in which nothing may be written.
STABLE_SECONDS: Final = 30.0
#: Seconds within which the world must settle.
SETTLE_LIMIT: Final = 900.0
#: Seconds that failing keys are given to succeed.
_CURE_SECONDS: Final = 300.0
#: Seconds after which another candidate leads at the latest.
_TAKEOVER_SECONDS: Final = 25.0
#: Writes of one object after which a world ends.
_RUNAWAY_WRITES: Final = 400

Scenario = Callable[["World"], Coroutine[Any, Any, object]]
Manifest = Mapping[str, Any] | Path


class NotSettledError(ListWatchError):
    """The world still changes after the time limit."""


class Setting(msgspec.Struct, kw_only=True):
    """What all worlds of a simulation have in common.

    Attributes:
        make_app: makes the program of each process.
        scenario: what the user does.
        replicas: number of processes.
        setup: objects that exist before the processes start.
        workloads: run pods of workloads.
        faults: names of the faults that can strike.
        without: names of the oracles that say nothing.
        mask: left out of the comparison of end states.
        invariants: called with the state at every commit.
        request_invariants: called with all requests at the end.
        records_rights: record which rights are asked for.
    """

    make_app: MakeApp
    scenario: Scenario
    replicas: int = 1
    setup: Sequence[Manifest] = ()
    workloads: "bool | Workloads" = False
    faults: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    mask: Mask = msgspec.field(default_factory=Mask)
    invariants: Sequence[Invariant] = ()
    request_invariants: Sequence[RequestInvariant] = ()
    records_rights: bool = False


class World:
    """One world. A scenario gets it: `async def scenario(world)`.

    Args:
        setting: what all worlds have in common.
        plan: what makes this one differ.
        loop: runs it.
        reference: what the world without faults left; None for that world itself.
        keeps_story: keep a journal.
    """

    def __init__(
        self,
        setting: Setting,
        plan: Plan,
        loop: VirtualLoop,
        reference: Outcome | None = None,
        *,
        keeps_story: bool = False,
    ) -> None:
        self.loop = loop
        self.plan = plan
        self.journal = Journal(keeps=keeps_story)
        #: The points passed so far, in order.
        self.points: list[Point] = []
        self.violations: list[Violation] = []
        #: The requests of all processes, in order.
        self.requests: list[SentRequest] = []
        self.outcome: Outcome | None = None
        self.server_context = copy_context()
        self._setting = setting
        self._reference = reference
        self._strikes = dict(plan.strikes)
        self._chance = random.Random(plan.seed)  # noqa: S311 - to be repeated, not secret
        self._writes: Counter[str] = Counter()
        self._last_change = 0.0
        self._commits = 0
        self._disturbed_until = 0.0
        self._processes: list[Process] = []
        self._incarnations = [0] * setting.replicas
        self._identities: dict[str, Process] = {}
        self._before_user = 0
        self._stale_until = 0.0
        self._is_ending = False
        #: The object that is written without end, once there is one.
        self._runaway: asyncio.Future[str] = loop.create_future()
        self.server = EmbeddedAPIServer(seed=plan.seed + 1, workloads=setting.workloads)
        if setting.records_rights:
            self.server.record_rights()
        self.state = State(self.server.store)
        self._base = 0
        self.server.store.observers.append(self._on_commit)
        #: A client of the server on which no fault strikes.
        config = msgspec.structs.replace(CONFIG, user_agent=TEST_CLIENT)
        self.client = Client(config, connections=MemoryConnections(ScenarioWire(self)))

    # --- For scenarios ---

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time()

    async def create(self, *manifests: Manifest) -> Object:
        """Create objects, in this order; return the last.

        Args:
            manifests: objects, or files of YAML documents.
        """
        made: Object | None = None
        for obj in objects_of(manifests):
            made = await self.client.create(obj)
        if made is None:
            raise ValueError("no object is given to create")
        return made

    async def change(
        self,
        resource: str,
        name: str,
        patch: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """Change fields of an object, by a merge patch.

        Args:
            resource: such as "deployments.apps".
            name: of the object.
            patch: the fields to change; None removes one.
            namespace: of the object; by default "default".
            subresource: such as "status".
        """
        return await self.client.patch(
            resource, name, patch, namespace, type=PatchType.MERGE, subresource=subresource
        )

    async def delete(self, resource: str, name: str, namespace: str | None = None) -> None:
        """Delete an object; does nothing if it is gone."""
        try:
            _ = await self.client.delete(resource, name, namespace)
        except NotFoundError:
            return

    async def settle(self, quiet: float = QUIET_SECONDS) -> None:
        """Wait until nothing changes any more.

        Args:
            quiet: seconds without a change.

        Raises:
            NotSettledError: something still changes after 900 s, or is written without end.
        """
        began = self.now
        while True:
            due = max(self._last_change, self._disturbed_until, began - quiet) + quiet
            if self.now >= due and (
                not self._curable() or self.now > max(began, self._disturbed_until) + _CURE_SECONDS
            ):
                return
            if self.now > began + SETTLE_LIMIT:
                raise NotSettledError(f"objects still change after {SETTLE_LIMIT:g} s")
            _ = await asyncio.wait({self._runaway}, timeout=max(due - self.now, 1.0))
            if self._runaway.done():
                raise NotSettledError(f"{self._runaway.result()} is written again and again")

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def crash(self, process: Process | int = 0) -> None:
        """Let a process die at once; the next one starts a second later.

        Args:
            process: the process, or the number of a replica from 0.
        """
        if isinstance(process, int):
            process = self._processes[process]
        if process.is_dead:
            return
        self.tell(Lane.FAULT, f"{process.name} dies")
        process.crash()
        number = self._processes.index(process)
        self._disturb(kinds.RESTART_SECONDS)
        self.loop.call_later(
            kinds.RESTART_SECONDS, self._start_process, number, context=self.server_context
        )

    def pause(self, process: Process | int = 0) -> None:
        """Let a process stand still for longer than a lease lasts.

        Args:
            process: as for `crash`.
        """
        if isinstance(process, int):
            process = self._processes[process]
        self.tell(Lane.FAULT, f"{process.name} stands still for {kinds.PAUSE_SECONDS:g} s")
        process.pause(kinds.PAUSE_SECONDS)
        self._disturb(kinds.PAUSE_SECONDS)

    # --- Running ---

    async def run(self) -> None:
        """Run the scenario, and judge."""
        self.server.start_controllers()
        try:
            for obj in objects_of(self._setting.setup):
                _ = await self.client.create(obj)
            self._base = self.server.store.revision
            for number in range(self._setting.replicas):
                self._processes.append(self._make_process(number))
                self._processes[number].start()
            await self.settle(quiet=1.0)
            await self._setting.scenario(self)
            await self.settle()
            commits = self._commits
            self._is_ending = True
            await asyncio.sleep(STABLE_SECONDS)
            if self._commits != commits:
                self.object_to(
                    "stability",
                    f"after {QUIET_SECONDS:g} s of rest, {self._commits - commits} more "
                    "writes were made",
                )
        except NotSettledError as error:
            self.object_to("stability", str(error))
        except Exception as error:  # noqa: BLE001 - an objection like others
            self.object_to("scenario", f"{type(error).__name__}: {error}")
        self._judge()

    def _judge(self) -> None:
        setting = self._setting
        ignored = frozenset(setting.mask.resources | {"leases.coordination.k8s.io", "events"})
        deleting, orphans = left_behind(self.state, self._base, ignored)
        failing = {
            f"{place[0]}: {place[1]}": failure.words
            for process in self._processes
            if not process.is_dead
            for place, failure in process.failures.items()
            if self._reference is not None or not failure.is_terminal
        }
        end = end_state(self.server.store, self._base, setting.mask)
        self.outcome = Outcome(end, self._writes, len(self.requests), failing, deleting, orphans)
        for violation in compare(self.outcome, self._reference, self.now):
            self.object_to(violation.oracle, violation.words, violation.details)
        for check in setting.request_invariants:
            words = verdict_of(check, self.requests)
            if words:
                self.object_to("invariant", words)
        for words in self.loop.refusals:
            self.object_to("unsupported", words)
        for context in self.loop.unhandled:
            error = context.get("exception")
            if isinstance(error, Exception):
                words = f"nobody handles {type(error).__name__}: {error}"
                self.object_to("exception", words)

    def _make_process(self, number: int) -> Process:
        incarnation = self._incarnations[number]
        self._incarnations[number] += 1
        name = "controller" if self._setting.replicas == 1 else f"replica {number + 1}"
        process = Process(
            name + "'" * incarnation,
            self.loop,
            self._setting.make_app,
            lambda process: ProcessWire(self, process),
            on_step=self._on_step,
            on_reconcile=self._on_reconcile,
            on_end=self._on_end,
            on_objection=self.object_to,
        )
        process.stale_until = self._stale_until
        _, fault = self.pass_point(Boundary.START, process, f"{process.name} starts")
        if fault == "skew":
            process.skew = kinds.SKEW_SECONDS
        return process

    def _start_process(self, number: int) -> None:
        process = self._processes[number] = self._make_process(number)
        self.tell(process.name, "starts")
        self._disturb(_TAKEOVER_SECONDS)
        process.start()

    # --- What happens ---

    def latency(self) -> float:
        """Return the seconds that a request or an event takes."""
        if not self.plan.seed:
            return 0.001
        chance = self._chance.random()
        return chance * 3.0 if chance > 0.95 else chance * 0.02

    def pass_point(
        self,
        boundary: Boundary,
        process: Process,
        words: str,
        *,
        versioned: bool = False,
        creates: bool = False,
    ) -> tuple[int, str]:
        """Count a point; return its number and the fault that strikes there."""
        if self._is_ending:
            return 0, ""
        number = len(self.points) + 1
        names = tuple(
            fault.name
            for fault in FAULTS.values()
            if boundary in fault.boundaries
            and fault.name in self._setting.faults
            and (versioned or not fault.versioned)
            and (creates or not fault.creates)
        )
        point = Point(
            number, boundary, process.name, words, names, self.now, self.server.store.revision
        )
        self.points.append(point)
        fault = self._strikes.get(number, "")
        if fault not in names:
            return number, ""
        self.tell(Lane.FAULT, f"{fault} at {process.name}: {words}", point=number)
        self._disturb(0.0)
        return number, fault

    def tell(self, lane: str, words: str, *, seen: int = 0, point: int = 0) -> None:
        """Add to the story."""
        if self.journal.keeps:
            self.journal.add(
                Entry(self.now, str(lane), words, self.server.store.revision, seen, point)
            )

    def object_to(self, oracle: str, words: str, details: Sequence[str] = ()) -> None:
        """Record an objection, once for each text."""
        if oracle in self._setting.without:
            return
        if any(each.oracle == oracle and each.words == words for each in self.violations):
            return
        self.violations.append(Violation(oracle, words, tuple(details), self.now))
        self.tell(Lane.ORACLE, f"{oracle}: {words}")

    def note_request(self, request: SentRequest) -> None:
        """Remember a process's request."""
        self.requests.append(request)

    def hold(self) -> float:
        """Return until when a lagging watch holds its events."""
        self._disturb(kinds.LAG_SECONDS)
        return self.now + kinds.LAG_SECONDS

    def fall_behind(self) -> None:
        """Let a second server answer the next process as of before the user's last change."""
        self._stale_until = self.now + kinds.RESTART_SECONDS + kinds.LAG_SECONDS
        replica = self.server.replica
        replica.fall_behind(max(self._before_user, self.server.store.compacted))
        self.loop.call_at(self._stale_until, replica.catch_up, context=self.server_context)
        self._disturb(kinds.RESTART_SECONDS + kinds.LAG_SECONDS)

    def handle_for(self, process: Process, sent: Sent) -> Handle:
        """Return the server that answers a process's request."""
        lagging = self.server.api.lagging
        is_fresh = lagging is None or self.now >= process.stale_until
        if is_fresh or sent.boundary is Boundary.WRITE or sent.is_consistent:
            return self.server.api.handle
        assert lagging is not None  # noqa: S101 - for the type checker
        return lagging.handle

    def note_user_change(self) -> None:
        """Remember the revision before a change of the user."""
        self._before_user = self.server.store.revision

    def note_lease(self, process: Process, body: bytes) -> None:
        """Remember by which name a process holds leases."""
        spec = msgspec.json.decode(body).get("spec") or {}
        if holder := spec.get("holderIdentity"):
            _ = self._identities.setdefault(holder, process)

    def check_leadership(self, process: Process, words: str) -> None:
        """Object to a write that is sent while another process holds the lease."""
        for app in process.apps:
            if not app.lease or app.shares_keys:
                continue
            for lease in self.state.list("leases.coordination.k8s.io"):
                if lease["metadata"]["name"] != app.lease:
                    continue
                holder = self._identities.get((lease.get("spec") or {}).get("holderIdentity", ""))
                if holder is not None and holder is not process:
                    self.object_to(
                        "leadership",
                        f"{process.name} sends '{words}' while {holder.name} holds {app.lease}",
                    )

    def delete_created(self, info: RequestInfo, body: bytes) -> None:
        """Delete an object that a process has just created, as somebody else may."""
        name = json.loads(body)["metadata"]["name"]
        resource = f"{info.resource}.{info.group}" if info.group else info.resource
        self._disturb(1.0)

        def delete() -> None:
            _ = self.loop.create_task(self.delete(resource, name, info.namespace or None))

        self.loop.call_later(1.0, delete, context=self.server_context)

    def _disturb(self, seconds: float) -> None:
        self._disturbed_until = max(self._disturbed_until, self.now + seconds)

    def _curable(self) -> bool:
        return any(
            not failure.is_terminal
            for process in self._processes
            if not process.is_dead
            for failure in process.failures.values()
        )

    def _on_step(self, process: Process, words: str) -> None:
        self.tell(process.name, words)

    def _on_end(self, process: Process, error: BaseException) -> None:
        """Start an ended program anew, as a kubelet does; the loss of a lease is a usual end."""
        words = f"{process.name} ended: {type(error).__name__}: {error}"
        if isinstance(error, SimulationError):
            self.object_to("unsupported", str(error))
            return
        self.tell(process.name, words)
        if not isinstance(error, LeadershipLostError):
            self.object_to("exception", words)
        self.crash(process)

    def _on_reconcile(self, process: Process, words: str) -> str:
        point, fault = self.pass_point(Boundary.STEP, process, words)
        self.tell(process.name, words, point=point)
        if fault == "crash":
            self.crash(process)
        return fault

    def _on_commit(self, bucket: "Bucket", change: "StoredChange") -> None:
        if bucket.name in QUIET:
            return
        self._commits += 1
        self._last_change = self.now
        entry = change.entry
        name = f"{resource_of(bucket.name)} {entry.key}"
        self._writes[name] += 1
        if self._writes[name] > _RUNAWAY_WRITES and not self._runaway.done():
            self._runaway.set_result(name)
        if self.journal.keeps:
            self.tell(Lane.SERVER, f"{change.type.value} {bucket.name} {entry.key}")
        for check in self._setting.invariants:
            words = verdict_of(check, self.state)
            if words:
                self.object_to("invariant", words)


def objects_of(manifests: Iterable[Manifest]) -> list[dict[str, Any]]:
    """Return the objects of manifests, which are objects or files of YAML documents."""
    found: list[dict[str, Any]] = []
    for manifest in manifests:
        if isinstance(manifest, Path):
            found += [each for each in yaml.safe_load_all(manifest.read_text()) if each]
        else:
            found.append(dict(manifest))
    return found
