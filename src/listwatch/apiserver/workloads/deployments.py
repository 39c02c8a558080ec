"""Deployment: creates, scales and deletes its ReplicaSets, and reports progress."""

from listwatch.apiserver.workloads.observed import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    Create,
    Delete,
    Later,
    Object,
    Observed,
    Steps,
    Update,
    View,
    condition,
    is_true,
    owner_reference,
    with_condition,
    with_metadata,
)
from listwatch.apiserver.workloads.pods import (
    claim,
    is_deleting,
    is_finished,
    name_hash,
    status_update,
)
from listwatch.apiserver.workloads.rollouts import (
    DESIRED,
    MOST,
    available_of,
    new_replicas,
    old_replicas,
    replicas_of,
    scaled,
    surge_and_unavailable,
)
from listwatch.schema.copying import copy_of
from listwatch.selector import LabelSelector

_HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_HISTORY = "deployment.kubernetes.io/revision-history"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
#: Annotations of a Deployment that its ReplicaSets don't get.
_OWN = frozenset((_LAST_APPLIED, _REVISION, _HISTORY, DESIRED, MOST))
#: The deadline that means none.
_NEVER = 2**31 - 1


def step_deployment(observed: Observed, deployment: View) -> Steps:
    """Bring the ReplicaSets of a Deployment closer to its spec, and its status up to date."""
    selector = LabelSelector.from_dict(deployment["spec"].get("selector"))
    if selector.is_everything:
        return []
    sets, steps = claim(
        observed, deployment, selector, "apps/v1", "Deployment", resource=REPLICA_SETS
    )
    if steps:
        return steps
    sets.sort(key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))
    return _Rollout(observed, deployment, sets).steps()


class _Rollout:
    """One look at a Deployment and its ReplicaSets, oldest first."""

    def __init__(self, observed: Observed, deployment: View, sets: list[View]) -> None:
        self._observed = observed
        self._deployment = deployment
        self._spec = deployment["spec"]
        self._sets = sets
        template = _plain(self._spec["template"])
        matching = (each for each in sets if _plain(each["spec"]["template"]) == template)
        self._new = next(matching, None)
        self._old = [each for each in sets if each is not self._new]
        self._status: Object = dict(deployment.get("status") or {})

    def steps(self) -> Steps:
        if is_deleting(self._deployment):
            return self._status_steps()
        paused = bool(self._spec.get("paused"))
        told = self._pause_condition(paused=paused)
        if told:
            return told
        moved = self._revision_steps()
        if moved:
            return moved
        if paused or self._is_scaling():
            plan = scaled(self._deployment, self._new, self._old)
            steps = self._scale_steps(plan, describe=True)
            if paused and not steps:
                steps = self._forget_old()
            return [*steps, *self._status_steps()]
        return [*self._roll(), *self._status_steps()]

    # -- the ReplicaSets ---------------------------------------------------------------------

    def _roll(self) -> Steps:
        recreate = self._spec["strategy"]["type"] == "Recreate"
        if recreate:
            down = self._scale_steps(
                {each["metadata"]["name"]: 0 for each in self._old if replicas_of(each)}
            )
            if down:
                return down
            if self._old_pods_run():
                return []
        if self._new is None:
            return self._create()
        plan = {}
        replicas = new_replicas(self._deployment, self._new, self._sets)
        if replicas != replicas_of(self._new):
            plan[self._new["metadata"]["name"]] = replicas
        elif not recreate:
            plan = old_replicas(self._deployment, self._new, self._old)
        steps = self._scale_steps(plan)
        return steps or (self._forget_old() if self._is_complete(self._counted()) else [])

    def _old_pods_run(self) -> bool:
        return any(
            not is_finished(pod)
            for each in self._old
            for pod in self._observed.controlled(each, PODS)
        )

    def _is_scaling(self) -> bool:
        """Return whether the number of replicas changed since the ReplicaSets were last scaled."""
        return any(
            replicas_of(each)
            and (each["metadata"].get("annotations") or {}).get(DESIRED)
            != str(replicas_of(self._deployment))
            for each in self._sets
        )

    def _bounds(self) -> dict[str, str]:
        total = replicas_of(self._deployment)
        return {DESIRED: str(total), MOST: str(total + surge_and_unavailable(self._deployment)[0])}

    def _scale_steps(self, plan: dict[str, int], *, describe: bool = False) -> Steps:
        """Return the writes that scale ReplicaSets; with `describe`, update annotations as well."""
        steps: Steps = []
        for each in self._sets:
            replicas = plan.get(each["metadata"]["name"], replicas_of(each))
            annotations = each["metadata"].get("annotations") or {}
            told = self._bounds().items() <= annotations.items()
            if replicas == replicas_of(each) and (told or not describe or not replicas):
                continue
            wanted = with_metadata(each, annotations={**annotations, **self._bounds()})
            wanted["spec"] = {**each["spec"], "replicas": replicas}
            steps.append(Update(REPLICA_SETS, wanted))
        return steps

    def _create(self) -> Steps:
        collisions = self._status.get("collisionCount", 0)
        metadata = self._deployment["metadata"]
        template = copy_of(dict(self._spec["template"]))
        digest = name_hash(template, collisions)
        name = f"{metadata['name']}-{digest}"
        if self._observed.find(REPLICA_SETS, metadata["namespace"], name) is not None:
            # another owner's ReplicaSet has the name: try the next one, as in `getNewReplicaSet`
            status = {**self._status, "collisionCount": collisions + 1}
            return status_update(DEPLOYMENTS, self._deployment, status)
        template["metadata"] = dict(template.get("metadata") or {})
        template["metadata"]["labels"] = {
            **(template["metadata"].get("labels") or {}),
            _HASH: digest,
        }
        selector = copy_of(dict(self._spec["selector"]))
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _HASH: digest}
        made: Object = {
            "metadata": {
                "name": name,
                "namespace": metadata["namespace"],
                "labels": template["metadata"]["labels"],
                "annotations": {
                    **self._handed_on(),
                    **self._bounds(),
                    _REVISION: str(self._latest(self._old) + 1),
                },
                "ownerReferences": [owner_reference("apps/v1", "Deployment", self._deployment)],
            },
            "spec": {
                "replicas": 0,
                "selector": selector,
                "template": template,
            },
        }
        if self._spec.get("minReadySeconds"):
            made["spec"]["minReadySeconds"] = self._spec["minReadySeconds"]
        made["spec"]["replicas"] = new_replicas(self._deployment, made, [*self._old, made])
        self._progress("NewReplicaSetCreated", f'Created new replica set "{name}"')
        return [Create(REPLICA_SETS, made)]

    def _forget_old(self) -> Steps:
        limit = self._spec.get("revisionHistoryLimit", 10)
        idle = [
            each
            for each in self._old
            if not replicas_of(each)
            and not (each.get("status") or {}).get("replicas")
            and not is_deleting(each)
        ]
        idle.sort(key=_revision_of)
        return [Delete(REPLICA_SETS, each) for each in idle[: max(0, len(idle) - limit)]]

    # -- revisions ---------------------------------------------------------------------------

    def _handed_on(self) -> dict[str, str]:
        annotations = self._deployment["metadata"].get("annotations") or {}
        return {key: value for key, value in annotations.items() if key not in _OWN}

    @staticmethod
    def _latest(sets: list[View]) -> int:
        return max(map(_revision_of, sets), default=0)

    def _revision_steps(self) -> Steps:
        """Return the writes that make the newest ReplicaSet the latest revision."""
        new = self._new
        if new is None:
            return []
        annotations = new["metadata"].get("annotations") or {}
        wanted = {**annotations, **self._handed_on()}
        was, revision = _revision_of(new), self._latest(self._old) + 1
        if was < revision:
            wanted[_REVISION] = str(revision)
            if was:
                passed = [*filter(None, annotations.get(_HISTORY, "").split(",")), str(was)]
                wanted[_HISTORY] = ",".join(passed)
        pause = self._spec.get("minReadySeconds", 0)
        if wanted != annotations or new["spec"].get("minReadySeconds", 0) != pause:
            changed = with_metadata(new, annotations=wanted)
            changed["spec"] = {**new["spec"], "minReadySeconds": pause}
            return [Update(REPLICA_SETS, changed)]
        steps: Steps = []
        told = self._deployment["metadata"].get("annotations") or {}
        if told.get(_REVISION) != wanted.get(_REVISION) and wanted.get(_REVISION):
            own = {**told, _REVISION: wanted[_REVISION]}
            steps.append(Update(DEPLOYMENTS, with_metadata(self._deployment, annotations=own)))
        if condition(self._deployment, "Progressing") is None and self._has_deadline():
            name = new["metadata"]["name"]
            self._progress("FoundNewReplicaSet", f'Found new replica set "{name}"')
            steps += status_update(DEPLOYMENTS, self._deployment, self._status)
        return steps

    # -- status ------------------------------------------------------------------------------

    def _has_deadline(self) -> bool:
        return self._spec.get("progressDeadlineSeconds") not in {None, _NEVER}

    def _put(self, kind: str, status: str, reason: str, message: str) -> None:
        conditions = self._status.get("conditions") or []
        new = {
            "type": kind,
            "status": status,
            "lastUpdateTime": self._observed.stamp,
            "lastTransitionTime": self._observed.stamp,
            "reason": reason,
            "message": message,
        }
        for each in conditions:
            if (each.get("type"), each.get("status"), each.get("reason")) == (kind, status, reason):
                return
        self._status["conditions"] = with_condition(conditions, new)

    def _progress(self, reason: str, message: str, status: str = "True") -> None:
        if self._has_deadline():
            self._put("Progressing", status, reason, message)

    def _pause_condition(self, *, paused: bool) -> Steps:
        if not self._has_deadline():
            return []
        known = condition(self._deployment, "Progressing") or {}
        if known.get("reason") == "ProgressDeadlineExceeded":
            return []
        if paused and known.get("reason") != "DeploymentPaused":
            self._put("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        elif not paused and known.get("reason") == "DeploymentPaused":
            self._put("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")
        else:
            return []
        return status_update(DEPLOYMENTS, self._deployment, self._status)

    def _counted(self) -> Object:
        counts = [each.get("status") or {} for each in self._sets]
        total = sum(map(replicas_of, self._sets))
        available = sum(map(available_of, self._sets))
        new = [] if self._new is None else [self._new.get("status") or {}]
        return {
            "observedGeneration": self._deployment["metadata"].get("generation", 0),
            "replicas": sum(each.get("replicas", 0) for each in counts),
            "updatedReplicas": sum(each.get("replicas", 0) for each in new),
            "readyReplicas": sum(each.get("readyReplicas", 0) for each in counts),
            "availableReplicas": available,
            "unavailableReplicas": max(0, total - available),
            "terminatingReplicas": sum(each.get("terminatingReplicas", 0) for each in counts),
        }

    def _is_complete(self, counts: Object) -> bool:
        wanted = replicas_of(self._deployment)
        names = ("updatedReplicas", "replicas", "availableReplicas")
        return all(counts[name] == wanted for name in names)

    def _status_steps(self) -> Steps:
        counts = self._counted()
        before = self._deployment.get("status") or {}
        least = replicas_of(self._deployment) - surge_and_unavailable(self._deployment)[1]
        if counts["availableReplicas"] >= least:
            words = "Deployment has minimum availability."
            self._put("Available", "True", "MinimumReplicasAvailable", words)
        else:
            words = "Deployment does not have minimum availability."
            self._put("Available", "False", "MinimumReplicasUnavailable", words)
        later: Steps = []
        if not self._spec.get("paused") and not is_deleting(self._deployment):
            later = self._tell_progress(counts, before)
        self._tell_failure()
        kept: Object = {
            key: self._status[key]
            for key in ("collisionCount", "conditions")
            if key in self._status
        }
        shown = {
            key: value for key, value in counts.items() if value or key == "terminatingReplicas"
        }
        return [*status_update(DEPLOYMENTS, self._deployment, {**shown, **kept}), *later]

    def _tell_progress(self, counts: Object, before: View) -> Steps:
        if not self._has_deadline():
            return []
        known = condition({"status": self._status}, "Progressing")
        settled = (
            known is not None
            and known.get("reason") == "NewReplicaSetAvailable"
            and counts["replicas"] == counts["updatedReplicas"]
        )
        if settled:
            return []
        name = self._new["metadata"]["name"] if self._new is not None else None
        subject = (
            f'ReplicaSet "{name}"'
            if name
            else f'Deployment "{self._deployment["metadata"]["name"]}"'
        )
        if self._is_complete(counts):
            self._progress("NewReplicaSetAvailable", f"{subject} has successfully progressed.")
            return []
        if _moved(counts, before):
            conditions = [
                each
                for each in self._status.get("conditions") or ()
                if each.get("type") != "Progressing"
            ]
            lasts = known is not None and known.get("status") == "True"
            since = (known.get("lastTransitionTime") if known and lasts else None) or (
                self._observed.stamp
            )
            self._status["conditions"] = [
                *conditions,
                {
                    "type": "Progressing",
                    "status": "True",
                    "lastUpdateTime": self._observed.stamp,
                    "lastTransitionTime": since,
                    "reason": "ReplicaSetUpdated",
                    "message": f"{subject} is progressing.",
                },
            ]
            return [Later(float(self._spec["progressDeadlineSeconds"]))]
        if known is None or known.get("reason") in {
            "NewReplicaSetAvailable",
            "ProgressDeadlineExceeded",
        }:
            return []
        left = self._spec["progressDeadlineSeconds"] - self._observed.since(
            known.get("lastUpdateTime")
        )
        if left > 0:
            return [Later(left)]
        message = f"{subject} has timed out progressing."
        self._progress("ProgressDeadlineExceeded", message, status="False")
        return []

    def _tell_failure(self) -> None:
        conditions = [
            each
            for each in self._status.get("conditions") or ()
            if each.get("type") != "ReplicaFailure"
        ]
        # the newest one's failure takes precedence
        for each in [*([] if self._new is None else [self._new]), *self._old]:
            if is_true(each, "ReplicaFailure"):
                failure = dict(condition(each, "ReplicaFailure") or {})
                failure.setdefault("lastUpdateTime", failure.get("lastTransitionTime"))
                conditions.append(failure)
                break
        self._status["conditions"] = conditions


def _plain(template: View) -> Object:
    """Return a template without the label that distinguishes ReplicaSets."""
    metadata = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != _HASH}
    metadata["labels"] = labels
    metadata.pop("creationTimestamp", None)
    return {**template, "metadata": metadata}


def _revision_of(replica_set: View) -> int:
    text = (replica_set["metadata"].get("annotations") or {}).get(_REVISION, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _moved(counts: Object, before: View) -> bool:
    """Return whether a status shows progress (`DeploymentProgressing`)."""
    updated, total = before.get("updatedReplicas", 0), before.get("replicas", 0)
    return bool(
        counts["updatedReplicas"] > updated
        or counts["replicas"] - counts["updatedReplicas"] < total - updated
        or counts["readyReplicas"] > before.get("readyReplicas", 0)
        or counts["availableReplicas"] > before.get("availableReplicas", 0)
    )
