"""The kubelets of all nodes: pods start, run, end, restart and fail without containers."""

from typing import Literal

from listwatch.apiserver.workloads import failures as causes
from listwatch.apiserver.workloads.failures import RUN_SECONDS, Failures, PodFailure
from listwatch.apiserver.workloads.nodes import address_of, is_node_ready
from listwatch.apiserver.workloads.observed import (
    NODES,
    PODS,
    Delete,
    Later,
    Object,
    Observed,
    Steps,
    Update,
    View,
    condition,
    controller_of,
    with_condition,
)
from listwatch.apiserver.workloads.options import Workloads
from listwatch.apiserver.workloads.pods import is_deleting, is_finished, name_hash
from listwatch.apiserver.workloads.scheduler import toleration_of

_UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
_SIDECAR = "Always"
#: Exit codes of containers that are stopped, and of those that exceed their memory.
_TERMINATED, _KILLED = 143, 137
#: Failures in which containers exit.
_CRASHES = frozenset((causes.CRASH_LOOP, causes.ERROR, causes.OOM_KILLED))

Truth = Literal["True", "False"]


def step_pod(observed: Observed, failures: Failures, options: Workloads, pod: View) -> Steps:
    """Return what the kubelet of a pod's node does next, or what follows if the node is lost."""
    name = pod["spec"].get("nodeName")
    if not name:
        return []
    node = observed.find(NODES, "", name)
    run = _Run(observed, failures, options, pod, node)
    if node is None:
        return run.without_node()
    failure = failures.of(pod, run.attempt)
    if failures.is_lost(node) or (failure is not None and failure.reason == causes.NODE_LOST):
        return run.lost()
    if is_deleting(pod):
        return run.end()
    if is_finished(pod) or not is_node_ready(node):
        return []
    return run.go_on(failure)


class _Run:
    """One look at a pod bound to a node."""

    def __init__(
        self,
        observed: Observed,
        failures: Failures,
        options: Workloads,
        pod: View,
        node: View | None,
    ) -> None:
        self._observed = observed
        self._failures = failures
        self._options = options
        self._pod = pod
        self._node = node
        self._spec: View = pod["spec"]
        self._status: View = pod.get("status") or {}
        self._states: list[View] = list(self._status.get("containerStatuses") or ())

    @property
    def attempt(self) -> int:
        """How often containers have started before."""
        return max((each.get("restartCount", 0) for each in self._states), default=0)

    def _wait(self, state: str, seconds: float) -> Steps:
        """Return the wait until a pod has been in a state this long; no steps if it has."""
        left = seconds - self._observed.elapsed(self._pod["metadata"]["uid"], state)
        return [Later(left)] if left > 0 else []

    # -- ends --------------------------------------------------------------------------------

    def without_node(self) -> Steps:
        """Delete a pod whose node is gone, like the pod garbage collector."""
        if is_deleting(self._pod) or self._status.get("startTime"):
            return self._gone()
        return []

    def _gone(self) -> Steps:
        metadata = self._pod["metadata"]
        if is_deleting(self._pod) and not metadata.get("deletionGracePeriodSeconds"):
            return []  # only finalizers keep it
        return [Delete(PODS, self._pod, grace=0)]

    def lost(self) -> Steps:
        """Mark a pod of an unreachable node, and delete it when its toleration expires."""
        if is_finished(self._pod) or is_deleting(self._pod):
            return []
        ready = condition(self._pod, "Ready")
        if ready is not None and ready.get("status") == "True":
            status = self._with_conditions(self._status, [self._told("Ready", "False")])
            return self._write({**status, "reason": causes.NODE_LOST})
        toleration = toleration_of(self._spec, _UNREACHABLE)
        seconds = 0.0 if toleration is None else toleration.get("tolerationSeconds")
        if seconds is None:
            return []
        waiting = self._wait("lost", float(seconds))
        if waiting:
            return waiting
        told = self._told(
            "DisruptionTarget",
            "True",
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
        )
        status = self._with_conditions(self._status, [told])
        return [*self._write(status), Delete(PODS, self._pod)]

    def end(self) -> Steps:
        """Stop the containers of a pod being deleted, and remove it."""
        metadata = self._pod["metadata"]
        grace = metadata.get("deletionGracePeriodSeconds") or 0
        waiting = self._wait("ending", min(self._options.stop_seconds, float(grace)))
        if waiting:
            return waiting
        steps: Steps = []
        if metadata.get("finalizers") and not is_finished(self._pod):
            # the owner of a finalizer must see how the pod ended
            steps = self._write(self._ended(_TERMINATED, causes.ERROR, phase="Failed"))
        return [*steps, *self._gone()]

    # -- life --------------------------------------------------------------------------------

    def go_on(self, failure: PodFailure | None) -> Steps:
        """Take the next step of a running pod."""
        if failure is not None and failure.reason == causes.EVICTED:
            return self._write(self._evicted())
        phase = self._status.get("phase", "Pending")
        if not self._states:
            return self._write(self._creating()) if phase == "Pending" else []
        kinds = [next(iter(each.get("state") or {"waiting": {}})) for each in self._states]
        if "waiting" in kinds:
            return self._waiting(failure)
        if "terminated" in kinds and phase == "Running":
            return self._restarting()
        return self._running(failure)

    def _waiting(self, failure: PodFailure | None) -> Steps:
        reason = next(
            (
                each["state"]["waiting"].get("reason")
                for each in self._states
                if "waiting" in each["state"]
            ),
            "",
        )
        if reason == causes.CRASH_LOOP:
            waiting = self._wait(
                f"backing off {self.attempt}", self._options.back_off(max(1, self.attempt))
            )
            return waiting or self._start(restarts=1)
        if failure is not None and failure.reason == causes.IMAGE_PULL:
            return [] if reason == causes.IMAGE_PULL else self._write(self._not_pulled())
        return self._wait("starting", self._options.start_seconds) or self._start()

    def _restarting(self) -> Steps:
        if self.attempt == 0:  # as with a real kubelet, the first restart comes at once
            return self._start(restarts=1)
        return self._write(self._backing_off())

    def _start(self, restarts: int = 0) -> Steps:
        # a pod that will fail never becomes ready: nothing may rely on it
        failure = self._failures.of(self._pod, self.attempt + restarts)
        ready = failure is None or failure.reason not in _CRASHES
        return self._write(self._started(restarts, ready=ready))

    def _running(self, failure: PodFailure | None) -> Steps:
        if failure is not None and failure.reason in _CRASHES:
            oom = failure.reason == causes.OOM_KILLED
            reason = causes.OOM_KILLED if oom else causes.ERROR
            return self._write(self._ended(_KILLED if oom else failure.exit_code, reason))
        status = self._with_conditions(self._status, self._ready_conditions())
        status["containerStatuses"] = [{**each, "ready": True} for each in self._states]
        if status.get("reason") == causes.NODE_LOST:
            del status["reason"]
        if status != self._status:
            return self._write(status)
        seconds = self._run_seconds()
        if seconds is None:
            return []
        waiting = self._wait(f"running {self.attempt}", seconds)
        return waiting or self._write(self._ended(0, "Completed"))

    def _run_seconds(self) -> float | None:
        """Return how long the containers run, in seconds; None for ever."""
        text = (self._pod["metadata"].get("annotations") or {}).get(RUN_SECONDS)
        if text is not None:
            try:
                return max(0.0, float(text))
            except ValueError:
                pass  # ignore a value that is not a number
        owner = controller_of(self._pod)
        if owner is not None and owner.get("kind") == "Job":
            return self._options.run_seconds
        return None

    # -- statuses ----------------------------------------------------------------------------

    def _write(self, status: Object) -> Steps:
        if status == self._status:
            return []
        return [Update(PODS, {**self._pod, "status": status}, "status")]

    def _told(self, kind: str, status: Truth, reason: str = "", message: str = "") -> Object:
        told: Object = {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": self._observed.stamp,
        }
        if reason:
            told |= {"reason": reason, "message": message}
        return told

    @staticmethod
    def _with_conditions(status: View, new: list[Object]) -> Object:
        conditions = list(status.get("conditions") or ())
        for each in new:
            conditions = with_condition(conditions, each)
        return {**status, "conditions": conditions}

    def _unready(self, reason: str = "ContainersNotReady") -> list[Object]:
        if reason == "PodCompleted":
            return [
                self._told("Ready", "False", reason),
                self._told("ContainersReady", "False", reason),
            ]
        names = " ".join(each["name"] for each in self._spec.get("containers") or ())
        message = f"containers with unready status: [{names}]"
        return [
            self._told("Ready", "False", reason, message),
            self._told("ContainersReady", "False", reason, message),
        ]

    def _ready_conditions(self) -> list[Object]:
        gates = [each["conditionType"] for each in self._spec.get("readinessGates") or ()]
        missing = [
            gate for gate in gates if (condition(self._pod, gate) or {}).get("status") != "True"
        ]
        ready = self._told("Ready", "True")
        if missing:
            words = "; ".join(
                f'corresponding condition of pod readiness gate "{gate}" does not exist.'
                if condition(self._pod, gate) is None
                else f'the status of pod readiness gate "{gate}" is not "True", but False'
                for gate in missing
            )
            ready = self._told("Ready", "False", "ReadinessGatesNotReady", words)
        return [ready, self._told("ContainersReady", "True")]

    def _creating(self) -> Object:
        inits = self._spec.get("initContainers") or ()
        reason = "PodInitializing" if inits else "ContainerCreating"
        address = address_of(self._node or {})
        status: Object = {
            **self._status,
            "phase": "Pending",
            "startTime": self._observed.stamp,
            "containerStatuses": [
                _container(each, {"waiting": {"reason": reason}}, ready=False)
                for each in self._spec.get("containers") or ()
            ],
        }
        if address:
            status |= {"hostIP": address, "hostIPs": [{"ip": address}]}
        if inits:
            status["initContainerStatuses"] = [
                _container(each, {"waiting": {"reason": reason}}, ready=False) for each in inits
            ]
        names = " ".join(each["name"] for each in inits)
        initialized = (
            self._told(
                "Initialized",
                "False",
                "ContainersNotInitialized",
                f"containers with incomplete status: [{names}]",
            )
            if inits
            else self._told("Initialized", "True")
        )
        new = [self._told("PodReadyToStartContainers", "False"), initialized, *self._unready()]
        if condition(self._pod, "PodScheduled") is None:
            new.append(self._told("PodScheduled", "True"))
        return self._with_conditions(status, new)

    def _started(self, restarts: int, *, ready: bool) -> Object:
        """Return the status of a pod whose containers run; exited ones run again."""
        stamp = self._observed.stamp
        states = []
        for spec, state in zip(self._spec.get("containers") or (), self._states, strict=False):
            if restarts and "running" in (state.get("state") or {}):
                states.append(state)
                continue
            running = _container(spec, {"running": {"startedAt": stamp}}, ready=ready)
            running["restartCount"] = state.get("restartCount", 0) + restarts
            ended = (state.get("state") or {}).get("terminated")
            running["lastState"] = {"terminated": ended} if ended else state.get("lastState") or {}
            running["containerID"] = self._container_id(spec["name"], running["restartCount"])
            states.append(running)
        status: Object = {**self._status, "phase": "Running", "containerStatuses": states}
        inits = self._spec.get("initContainers") or ()
        if inits and not restarts:
            status["initContainerStatuses"] = [self._init_done(each) for each in inits]
        if not status.get("podIP"):
            address = status.get("hostIP") if self._spec.get("hostNetwork") else None
            address = address or self._observed.free_address()
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        status.pop("reason", None)
        new = [self._told("PodReadyToStartContainers", "True"), self._told("Initialized", "True")]
        told = self._ready_conditions() if ready else self._unready()
        return self._with_conditions(status, [*new, *told])

    def _init_done(self, spec: View) -> Object:
        stamp = self._observed.stamp
        if spec.get("restartPolicy") == _SIDECAR:
            running = _container(spec, {"running": {"startedAt": stamp}}, ready=True)
            running["containerID"] = self._container_id(spec["name"], 0)
            return running
        identity = self._container_id(spec["name"], 0)
        ended = {
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": stamp,
            "finishedAt": stamp,
            "containerID": identity,
        }
        done = _container(spec, {"terminated": ended}, ready=True)
        return {**done, "started": False, "containerID": identity}

    def _container_id(self, name: str, attempt: int) -> str:
        digest = name_hash([self._pod["metadata"]["uid"], name, attempt])
        return f"containerd://{digest.encode().hex():0<64.64}"

    def _not_pulled(self) -> Object:
        states = []
        for spec in self._spec.get("containers") or ():
            image = spec.get("image", "")
            waiting = {
                "reason": causes.IMAGE_PULL,
                "message": f'Back-off pulling image "{image}": ErrImagePull: failed to pull and '
                f'unpack image "{image}": not found',
            }
            states.append(_container(spec, {"waiting": waiting}, ready=False))
        return {**self._status, "containerStatuses": states}

    def _ended(self, code: int, reason: str, phase: str = "") -> Object:
        """Return the status after the first container, or with code 0 all of them, has exited."""
        stamp = self._observed.stamp
        restarted = self._spec.get("restartPolicy", "Always")
        ends_all = code == 0 or phase or restarted == "Never"
        states = []
        for index, state in enumerate(self._states):
            running = (state.get("state") or {}).get("running")
            if (index and not ends_all) or (running is None and not phase):
                states.append(state)
                continue
            ended = {
                "exitCode": code,
                "reason": reason,
                "startedAt": (running or {}).get("startedAt", stamp),
                "finishedAt": stamp,
            }
            if state.get("containerID"):
                ended["containerID"] = state["containerID"]
            states.append(
                {**state, "state": {"terminated": ended}, "ready": False, "started": False}
            )
        if not phase:
            if restarted == "Never" or (restarted == "OnFailure" and code == 0):
                phase = "Failed" if code else "Succeeded"
            else:
                phase = "Running"
        status: Object = {**self._status, "phase": phase, "containerStatuses": states}
        why = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
        return self._with_conditions(status, self._unready(why))

    def _backing_off(self) -> Object:
        states = []
        for state in self._states:
            ended = (state.get("state") or {}).get("terminated")
            if ended is None:
                states.append(state)
                continue
            seconds = self._options.back_off(max(1, self.attempt))
            metadata = self._pod["metadata"]
            waiting = {
                "reason": causes.CRASH_LOOP,
                "message": f"back-off {seconds:g}s restarting failed container={state['name']} "
                f"pod={metadata['name']}_{metadata['namespace']}({metadata['uid']})",
            }
            states.append(
                {**state, "state": {"waiting": waiting}, "lastState": {"terminated": ended}}
            )
        return {**self._status, "containerStatuses": states}

    def _evicted(self) -> Object:
        told = self._told(
            "DisruptionTarget",
            "True",
            "TerminationByKubelet",
            "The node was low on resource: memory. ",
        )
        status = self._ended(_KILLED, causes.ERROR, phase="Failed")
        status = self._with_conditions(status, [told])
        return {
            **status,
            "reason": causes.EVICTED,
            "message": "The node was low on resource: memory. ",
        }


def _container(spec: View, state: View, *, ready: bool) -> Object:
    image = spec.get("image", "")
    return {
        "name": spec["name"],
        "state": dict(state),
        "lastState": {},
        "ready": ready,
        "restartCount": 0,
        "image": image,
        "imageID": "" if "waiting" in state else image,
        "started": "running" in state,
    }
