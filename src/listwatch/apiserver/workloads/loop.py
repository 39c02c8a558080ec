"""The loop that feeds the controllers with changes and performs their writes."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from listwatch.apiserver.storage.store import (
    Bucket,
    Entry,
    NotStoredError,
    Storage,
    StoredChange,
    StoredChangeType,
)
from listwatch.apiserver.workloads import observed as kinds
from listwatch.apiserver.workloads.claims import claims_of, step_claim, step_volume
from listwatch.apiserver.workloads.cron_jobs import step_cron_job
from listwatch.apiserver.workloads.daemon_sets import step_daemon_set
from listwatch.apiserver.workloads.deployments import step_deployment
from listwatch.apiserver.workloads.disruption import step_budget
from listwatch.apiserver.workloads.endpoint_slices import (
    selects_pod,
    step_service,
    without_service,
)
from listwatch.apiserver.workloads.failures import Failures, PodFailure
from listwatch.apiserver.workloads.jobs import TRACKING, step_job, step_tracked
from listwatch.apiserver.workloads.kubelet import step_pod
from listwatch.apiserver.workloads.namespaces import GIVEN, step_namespace
from listwatch.apiserver.workloads.nodes import made_node, step_node
from listwatch.apiserver.workloads.observed import (
    Create,
    Later,
    Observed,
    Steps,
    View,
    controller_of,
)
from listwatch.apiserver.workloads.options import Workloads
from listwatch.apiserver.workloads.replica_sets import (
    step_replica_set,
    step_replication_controller,
)
from listwatch.apiserver.workloads.scheduler import step_unbound
from listwatch.apiserver.workloads.stateful_sets import step_stateful_set
from listwatch.apiserver.workloads.writes import Writes
from listwatch.backoff import WORK_ITEM
from listwatch.clock import Clock, Timer
from listwatch.errors import ConflictError

_log = logging.getLogger(__name__)

#: Seconds of work before other tasks run.
_TURN = 0.005
#: Seconds until a step is repeated whose writes the journal could not record.
_NOT_STORED_SECONDS = 10.0
#: The bytes in a pod whose end a Job counts.
_TRACKING = f'"{TRACKING}"'.encode()
_MANAGER = "kube-controller-manager"


class _Controller(NamedTuple):
    """One controller: its resource, its step, and its field manager."""

    resource: str
    step: Callable[[View], Steps]
    manager: str = _MANAGER
    #: the service account in kube-system that sends the requests
    account: str = ""


_Key = tuple[str, str]

#: The resources of kinds that own pods, directly or through other owners, by group and kind.
_OWNERS: Mapping[tuple[str, str], str] = {
    ("apps", "Deployment"): kinds.DEPLOYMENTS,
    ("apps", "ReplicaSet"): kinds.REPLICA_SETS,
    ("", "ReplicationController"): kinds.REPLICATION_CONTROLLERS,
    ("apps", "StatefulSet"): kinds.STATEFUL_SETS,
    ("apps", "DaemonSet"): kinds.DAEMON_SETS,
    ("batch", "Job"): kinds.JOBS,
    ("batch", "CronJob"): kinds.CRON_JOBS,
    ("", "Service"): kinds.SERVICES,
}
#: The resources that adopt orphans, by the orphans' resource.
_ADOPTERS: Mapping[str, tuple[str, ...]] = {
    kinds.PODS: ("replicasets", "replicationcontrollers", "statefulsets", "daemonsets", "jobs"),
    kinds.REPLICA_SETS: ("deployments",),
    kinds.REVISIONS: ("statefulsets", "daemonsets"),
}
#: Resources whose objects say how many pods a budget may expect.
_SCALED = frozenset(
    (kinds.DEPLOYMENTS, kinds.REPLICA_SETS, kinds.STATEFUL_SETS, kinds.REPLICATION_CONTROLLERS)
)


class RunningWorkloads:
    """Follows every change of a store and brings workloads closer to their specs.

    For the event loop of the store. Takes one step at a time, each on the current state.
    """

    def __init__(
        self,
        store: Storage,
        writes: Writes,
        clock: Clock,
        options: Workloads,
        authority: str = "",
    ) -> None:
        self._store = store
        self._writes = writes
        self._clock = clock
        self._options = options
        self._observed = Observed(store, clock)
        self.failures = failures = Failures()
        observed = self._observed

        def of_account(
            account: str, resource: str, step: Callable[..., Steps], *given: object
        ) -> _Controller:
            return _Controller(resource, partial(step, observed, *given), account=account)

        self._controllers: dict[str, _Controller] = {
            "namespaces": of_account(
                "service-account-controller", kinds.NAMESPACES, step_namespace, authority
            ),
            "nodes": of_account("node-controller", kinds.NODES, step_node, failures),
            "scheduler": _Controller(kinds.PODS, partial(step_unbound, observed), "kube-scheduler"),
            "kubelet": _Controller(
                kinds.PODS, partial(step_pod, observed, failures, options), "kubelet"
            ),
            "replicasets": of_account(
                "replicaset-controller", kinds.REPLICA_SETS, step_replica_set
            ),
            "replicationcontrollers": of_account(
                "replication-controller", kinds.REPLICATION_CONTROLLERS, step_replication_controller
            ),
            "deployments": of_account("deployment-controller", kinds.DEPLOYMENTS, step_deployment),
            "statefulsets": of_account(
                "statefulset-controller", kinds.STATEFUL_SETS, step_stateful_set
            ),
            "daemonsets": of_account("daemon-set-controller", kinds.DAEMON_SETS, step_daemon_set),
            "jobs": of_account("job-controller", kinds.JOBS, step_job, options),
            "tracked": of_account("job-controller", kinds.PODS, step_tracked),
            "cronjobs": of_account("cronjob-controller", kinds.CRON_JOBS, step_cron_job),
            "claims": of_account("persistent-volume-binder", kinds.CLAIMS, step_claim),
            "volumes": of_account("persistent-volume-binder", kinds.VOLUMES, step_volume),
            "endpoints": of_account("endpointslice-controller", kinds.SERVICES, step_service),
            "budgets": of_account("disruption-controller", kinds.BUDGETS, step_budget),
        }
        #: the steps after an object's deletion, by controller, given its namespace and name
        self._gone: dict[str, Callable[[str, str], Steps]] = {
            "endpoints": partial(without_service, observed)
        }
        self._by_resource: dict[str, list[str]] = {}
        for name, controller in self._controllers.items():
            if name != "tracked":  # only tracked pods, see `_after_pod`
                self._by_resource.setdefault(controller.resource, []).append(name)
        #: controller and key of each object to process, in order
        self._due: dict[_Key, None] = {}
        self._timers: dict[_Key, Timer] = {}
        self._failed: dict[_Key, int] = {}
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        store.observers.append(self._observe)
        self._note_all()

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start with all existing objects, then follow every change."""
        if self._task is None:
            self._make_nodes()
            self._wake = wake = asyncio.Event()
            self._look_at_all()
            self._task = asyncio.get_running_loop().create_task(self._run(wake))

    async def stop(self) -> None:
        """Stop working; changes are still recorded."""
        task, self._task, self._wake = self._task, None, None
        if task is not None:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if ended is not None and not isinstance(ended, asyncio.CancelledError):
                raise ended
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()

    def reset(self) -> None:
        """Look at all objects again, after a change without a notification."""
        self._observed.clear()
        self._note_all()
        self._look_at_all()

    def _note_all(self) -> None:
        for bucket in self._store.buckets():
            for entry in bucket.current():
                self._observed.add(bucket.name, entry)

    def _look_at_all(self) -> None:
        for name, controller in self._controllers.items():
            for entry in self._store.bucket(controller.resource).current():
                self._plan(name, entry.key)

    def _make_nodes(self) -> None:
        if not self._store.bucket(kinds.NODES).entries:
            for number in range(self._options.nodes):
                self._writes.make(Create(kinds.NODES, made_node(number)), "kubelet")

    # -- failures ----------------------------------------------------------------------------

    def fail(self, failure: PodFailure) -> None:
        """Make pods fail from now on, including running ones."""
        self.failures.add(failure)
        self._look_at(kinds.PODS)

    def heal(self) -> None:
        """End all failures; recover lost nodes."""
        self.failures.clear()
        self._look_at(kinds.NODES)
        self._look_at(kinds.PODS)

    def lose_node(self, name: str) -> None:
        """Make a node unreachable.

        Raises:
            ValueError: there is no such node.
        """
        self._check_node(name)
        self.failures.lose(name)
        self._plan("nodes", name)

    def recover_node(self, name: str) -> None:
        """Recover a node.

        Raises:
            ValueError: there is no such node.
        """
        self._check_node(name)
        self.failures.recover(name)
        self._plan("nodes", name)

    def _check_node(self, name: str) -> None:
        nodes = self._store.bucket(kinds.NODES).entries
        if name not in nodes:
            raise ValueError(f"no such node: {name}; there are {', '.join(nodes) or 'none'}")

    # -- planning ------------------------------------------------------------------------------

    def _plan(self, controller: str, key: str) -> None:
        if self._wake is not None:
            self._due[controller, key] = None
            self._wake.set()

    def _look_at(self, resource: str, namespace: str = "") -> None:
        """Plan a look at all objects of a resource."""
        for entry in self._store.bucket(resource).current(namespace):
            for name in self._by_resource.get(resource, ()):
                self._plan(name, entry.key)

    def _observe(self, bucket: Bucket, change: StoredChange) -> None:
        views = self._states(bucket, change) if self._task is not None else []
        self._observed.note(bucket, change)
        if self._task is None:
            return
        entry = change.entry
        deleted = change.type is StoredChangeType.DELETED
        for name in self._by_resource.get(bucket.name, ()):
            if not deleted or name in self._gone:
                self._plan(name, entry.key)
        for view in views:
            self._plan_owner(entry.namespace, view)
        if bucket.name in _ADOPTERS and not deleted and not entry.owners:
            self._plan_adopters(bucket.name, change)
        if bucket.name == kinds.PODS:
            self._after_pod(change)
        elif bucket.name == kinds.NODES:
            self._after_node(entry)
        elif GIVEN.get(bucket.name) == entry.name:
            self._plan("namespaces", entry.namespace)
        elif bucket.name == kinds.ENDPOINTS:
            self._plan("endpoints", entry.key)
        elif bucket.name == kinds.CLAIMS:
            self._after_claim(entry)
        elif bucket.name == kinds.VOLUMES:
            self._after_volume(entry)
        elif bucket.name in _SCALED:
            self._look_at(kinds.BUDGETS, entry.namespace)

    def _states(self, bucket: Bucket, change: StoredChange) -> list[View]:
        """Return the states of an object with owners, before and after a change."""
        states = (change.previous, change.entry)
        return [
            self._observed.view(bucket.name, entry) for entry in states if entry and entry.owners
        ]

    def _plan_owner(self, namespace: str, view: View) -> None:
        owner = controller_of(view)
        if owner is None:
            return
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        resource = _OWNERS.get((group, str(owner.get("kind", ""))))
        for name in self._by_resource.get(resource or "", ()):
            self._plan(name, f"{namespace}/{owner.get('name')}")

    def _plan_adopters(self, resource: str, change: StoredChange) -> None:
        entry, previous = change.entry, change.previous
        if previous is not None and previous.labels == entry.labels and not previous.owners:
            return
        for name in _ADOPTERS[resource]:
            adopters = self._store.bucket(self._controllers[name].resource)
            for adopter in adopters.span(entry.namespace):
                self._plan(name, adopter.key)

    def _after_pod(self, change: StoredChange) -> None:
        entry, previous = change.entry, change.previous
        left = change.type is StoredChangeType.DELETED or entry.fields.get("status.phase") in {
            "Succeeded",
            "Failed",
        }
        if left and previous is not None and previous.fields.get("spec.nodeName"):
            self._plan_unbound()
        if change.type is not StoredChangeType.DELETED and _TRACKING in entry.data:
            self._plan("tracked", entry.key)
        if left and b'"persistentVolumeClaim"' in entry.data:
            for name in claims_of(self._observed.view(kinds.PODS, entry)):
                self._plan("claims", f"{entry.namespace}/{name}")
        self._look_at(kinds.BUDGETS, entry.namespace)
        states = [entry] if previous is None else [entry, previous]
        for service in self._observed.objects(kinds.SERVICES, entry.namespace):
            if any(selects_pod(service, state.labels) for state in states):
                self._plan("endpoints", f"{entry.namespace}/{service['metadata']['name']}")

    def _plan_unbound(self, namespace: str = "") -> None:
        for key in self._observed.unbound():
            if not namespace or key.startswith(f"{namespace}/"):
                self._plan("scheduler", key)

    def _after_claim(self, entry: Entry) -> None:
        self._plan_unbound(entry.namespace)
        volume = self._observed.view(kinds.CLAIMS, entry)["spec"].get("volumeName")
        if volume:
            self._plan("volumes", volume)

    def _after_volume(self, entry: Entry) -> None:
        reference = self._observed.view(kinds.VOLUMES, entry)["spec"].get("claimRef")
        if reference is not None:
            self._plan("claims", f"{reference.get('namespace')}/{reference.get('name')}")
            return
        for claim in self._observed.objects(kinds.CLAIMS):
            if not claim["spec"].get("volumeName"):
                metadata = claim["metadata"]
                self._plan("claims", f"{metadata['namespace']}/{metadata['name']}")

    def _after_node(self, entry: Entry) -> None:
        self._plan_unbound()
        self._look_at(kinds.DAEMON_SETS)
        for pod in self._observed.pods_on(entry.name):
            metadata = pod["metadata"]
            self._plan("kubelet", f"{metadata['namespace']}/{metadata['name']}")

    # -- work --------------------------------------------------------------------------------

    async def _run(self, wake: asyncio.Event) -> None:
        while True:
            await wake.wait()
            wake.clear()
            begun = self._clock.now()
            turns = 0
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                await self._take(key)
                turns += 1
                if turns == 100 or self._clock.now() - begun > _TURN:
                    await asyncio.sleep(0)
                    begun, turns = self._clock.now(), 0

    async def _take(self, key: _Key) -> None:
        """Take one step, and plan the next if it says when, or failed."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        name, place = key
        controller = self._controllers[name]
        obj = self._observed.at(controller.resource, place)
        try:
            if obj is not None:
                steps = controller.step(obj)
            elif name in self._gone:
                namespace, _, last = place.rpartition("/")
                steps = self._gone[name](namespace, last)
            else:
                self._failed.pop(key, None)
                return
            refused = await self._writes.perform(steps, controller.manager, controller.account)
        except NotStoredError as error:
            _log.warning("%s of %s: tried again: %s", name, place, error)
            self._again(key, _NOT_STORED_SECONDS)
            return
        except Exception:  # noqa: BLE001 - logged; one object must not end the loop
            _log.exception("%s of %s failed; it is looked at again when it changes", name, place)
            return
        uid = "" if obj is None else obj["metadata"]["uid"]
        if refused is None:
            self._failed.pop(key, None)
            if self._observed.refusals.pop(uid, None) is not None:
                self._plan(*key)
            for step in steps:
                if isinstance(step, Later):
                    self._again(key, step.seconds)
            return
        _log.info("%s of %s was refused: %s", name, place, refused.message)
        failures = self._failed[key] = self._failed.get(key, 0) + 1
        if isinstance(refused, ConflictError):
            # another client changed it during a webhook call
            self._again(key, WORK_ITEM.delay(failures))
        elif uid and uid not in self._observed.refusals:
            # keep the first message: later ones may differ only by a generated name
            self._observed.refusals[uid] = refused.message
            self._plan(*key)  # the next step reports the refusal in the status
        else:
            self._again(key, WORK_ITEM.delay(failures))

    def _again(self, key: _Key, seconds: float) -> None:
        timer = self._timers.get(key)
        if timer is not None:
            timer.cancel()
        self._timers[key] = self._clock.call_later(seconds, self._fall_due, key)

    def _fall_due(self, key: _Key) -> None:
        self._timers.pop(key, None)
        self._plan(*key)
