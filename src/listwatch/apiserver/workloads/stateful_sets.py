"""StatefulSet: pods with their own names and claims, one after the other by default."""

from listwatch.apiserver.workloads.observed import (
    CLAIMS,
    PODS,
    STATEFUL_SETS,
    Create,
    Delete,
    Later,
    Object,
    Observed,
    Steps,
    Update,
    View,
    with_metadata,
)
from listwatch.apiserver.workloads.pods import (
    available_in,
    is_deleting,
    is_finished,
    is_ready,
    pod_of,
    status_update,
)
from listwatch.apiserver.workloads.revisions import HASH, forget_old, step_owner, template_of
from listwatch.apiserver.workloads.rollouts import replicas_of, resolve
from listwatch.schema.copying import copy_of

_NAME, _INDEX = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"
_REVISION_HASH = "controller.kubernetes.io/hash"


def step_stateful_set(observed: Observed, obj: View) -> Steps:
    """Bring the pods of a StatefulSet closer to its spec, and its status up to date."""

    def step(pods: list[View], revisions: list[View], update: View) -> Steps:
        return _Members(observed, obj, pods, revisions, update).steps()

    return step_owner(observed, obj, STATEFUL_SETS, "StatefulSet", _REVISION_HASH, step)


class _Members:
    """One look at a StatefulSet, its revisions and its pods."""

    def __init__(
        self, observed: Observed, obj: View, pods: list[View], revisions: list[View], update: View
    ) -> None:
        self._observed = observed
        self._obj = obj
        self._spec: View = obj["spec"]
        self._before: View = obj.get("status") or {}
        self._revisions = revisions
        self._update = update
        names = {each["metadata"]["name"]: each for each in revisions}
        self._current = names.get(self._before.get("currentRevision", ""), update)
        self._first = (self._spec.get("ordinals") or {}).get("start", 0)
        self._wanted = range(self._first, self._first + replicas_of(obj))
        self._ordered = self._spec.get("podManagementPolicy") != "Parallel"
        self._pods = {ordinal: pod for pod in pods if (ordinal := self._ordinal(pod)) is not None}
        self._waits: list[float] = []

    def _ordinal(self, pod: View) -> int | None:
        base, _, number = pod["metadata"]["name"].rpartition("-")
        if base != self._obj["metadata"]["name"] or not (number.isascii() and number.isdigit()):
            return None
        return int(number)

    def steps(self) -> Steps:
        steps = self._retain_claims() or self._manage()
        status = status_update(STATEFUL_SETS, self._obj, self._status())
        pause: Steps = [Later(min(self._waits))] if self._waits else []
        return [*steps, *self._forget(), *status, *pause]

    # -- states of pods ----------------------------------------------------------------------

    def _is_available(self, pod: View) -> bool:
        seconds = available_in(self._observed, pod, self._spec.get("minReadySeconds") or 0)
        if seconds:
            self._waits.append(seconds)
        return seconds == 0

    def _is_healthy(self, pod: View) -> bool:
        return not is_deleting(pod) and self._is_available(pod)

    @staticmethod
    def _revision(pod: View) -> str:
        return str((pod["metadata"].get("labels") or {}).get(HASH, ""))

    @property
    def _partition(self) -> int:
        rolling = (self._spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
        return int(rolling.get("partition") or 0)

    # -- pods --------------------------------------------------------------------------------

    def _manage(self) -> Steps:
        steps: Steps = []
        for ordinal in self._wanted:
            pod = self._pods.get(ordinal)
            if pod is None:
                steps += self._make(ordinal)
            elif is_finished(pod) and not is_deleting(pod):
                steps.append(Delete(PODS, pod))
            elif not self._ordered or self._is_healthy(pod):
                continue
            if self._ordered:
                return steps
        # delete surplus pods, the last one first
        for ordinal in sorted(self._pods, reverse=True):
            if ordinal in self._wanted:
                continue
            pod = self._pods[ordinal]
            if not is_deleting(pod):
                steps += [*self._orphan_claims(pod), Delete(PODS, pod)]
            if self._ordered:
                return steps
        return steps or self._roll()

    def _roll(self) -> Steps:
        """Delete pods of an older revision, the last one first, within maxUnavailable."""
        strategy = self._spec.get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return []
        rolling = strategy.get("rollingUpdate") or {}
        limit = max(1, resolve(rolling.get("maxUnavailable", 1), len(self._wanted), up=True))
        newest = self._update["metadata"]["name"]
        missing = sum(
            1
            for ordinal in self._wanted
            if ordinal not in self._pods or not self._is_healthy(self._pods[ordinal])
        )
        steps: Steps = []
        for ordinal in reversed(self._wanted):
            if ordinal < self._first + self._partition:
                break
            pod = self._pods.get(ordinal)
            if pod is None:
                continue
            healthy = self._is_healthy(pod)
            if self._revision(pod) != newest and not is_deleting(pod):
                if healthy and missing >= limit:
                    break
                steps.append(Delete(PODS, pod))
                missing += healthy
            if limit == 1 and (steps or not healthy):
                break
        return steps

    def _needed(self, ordinal: int) -> View:
        """Return the revision of a new pod (`newVersionedStatefulSetPod`)."""
        strategy = self._spec.get("updateStrategy") or {}
        if strategy.get("type") == "RollingUpdate":
            place = ordinal - self._first
            if place < (self._partition or self._count(self._current)):
                return self._current
        return self._update

    def _count(self, revision: View) -> int:
        """Return the number of remaining pods of a revision."""
        name = revision["metadata"]["name"]
        return sum(
            self._revision(pod) == name and not is_deleting(pod) and not is_finished(pod)
            for pod in self._pods.values()
        )

    def _make(self, ordinal: int) -> Steps:
        revision = self._needed(ordinal)
        metadata = self._obj["metadata"]
        name = f"{metadata['name']}-{ordinal}"
        template = template_of(revision)
        pod = pod_of(template, self._obj, "apps/v1", "StatefulSet", name=name)
        pod["metadata"].setdefault("labels", {}).update(
            {_NAME: name, _INDEX: str(ordinal), HASH: revision["metadata"]["name"]}
        )
        spec = pod["spec"]
        spec["hostname"] = name
        if self._spec.get("serviceName"):
            spec["subdomain"] = self._spec["serviceName"]
        claims = self._spec.get("volumeClaimTemplates") or ()
        names = {each["metadata"]["name"] for each in claims}
        volumes = [each for each in spec.get("volumes") or () if each.get("name") not in names]
        steps: Steps = []
        for each in claims:
            claim_name = f"{each['metadata']['name']}-{name}"
            source = {"claimName": claim_name}
            volumes.append({"name": each["metadata"]["name"], "persistentVolumeClaim": source})
            if self._observed.find(CLAIMS, metadata["namespace"], claim_name) is None:
                steps.append(Create(CLAIMS, self._claim(each, claim_name)))
        if volumes:
            spec["volumes"] = volumes
        return [*steps, Create(PODS, pod)]

    # -- claims ------------------------------------------------------------------------------

    def _claim(self, template: View, name: str) -> Object:
        labels = (self._spec.get("selector") or {}).get("matchLabels") or {}
        given = template["metadata"]
        metadata: Object = {
            "name": name,
            "namespace": self._obj["metadata"]["namespace"],
            "labels": {**(given.get("labels") or {}), **labels},
        }
        if given.get("annotations"):
            metadata["annotations"] = dict(given["annotations"])
        if self._retention("whenDeleted") == "Delete":
            metadata["ownerReferences"] = [self._plain_reference("StatefulSet", self._obj)]
        return {"metadata": metadata, "spec": copy_of(template["spec"])}

    def _retention(self, when: str) -> str:
        policy = self._spec.get("persistentVolumeClaimRetentionPolicy") or {}
        return str(policy.get(when, "Retain"))

    @staticmethod
    def _plain_reference(kind: str, owner: View) -> Object:
        return {
            "apiVersion": "apps/v1" if kind == "StatefulSet" else "v1",
            "kind": kind,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }

    def _claims_of(self, pod_name: str) -> list[View]:
        namespace = self._obj["metadata"]["namespace"]
        names = (
            f"{each['metadata']['name']}-{pod_name}"
            for each in self._spec.get("volumeClaimTemplates") or ()
        )
        found = (self._observed.find(CLAIMS, namespace, name) for name in names)
        return [each for each in found if each is not None]

    def _retain_claims(self) -> Steps:
        """Make the StatefulSet the owner of the claims, or nobody, by the retention policy."""
        uid = self._obj["metadata"]["uid"]
        delete = self._retention("whenDeleted") == "Delete"
        steps: Steps = []
        for ordinal in self._wanted:
            for each in self._claims_of(f"{self._obj['metadata']['name']}-{ordinal}"):
                owners = each["metadata"].get("ownerReferences") or []
                kept = [owner for owner in owners if owner.get("kind") not in _RETAINERS]
                wanted = (
                    [*kept, self._plain_reference("StatefulSet", self._obj)] if delete else kept
                )
                known = {owner.get("uid") for owner in owners}
                if known != {owner["uid"] for owner in wanted} and (delete or uid in known):
                    steps.append(
                        Update(CLAIMS, with_metadata(each, ownerReferences=wanted or None))
                    )
        return steps

    def _orphan_claims(self, pod: View) -> Steps:
        """Make a surplus pod the owner of its claims, if the policy deletes them with it."""
        if self._retention("whenScaled") != "Delete":
            return []
        reference = self._plain_reference("Pod", pod)
        return [
            Update(CLAIMS, with_metadata(each, ownerReferences=[reference]))
            for each in self._claims_of(pod["metadata"]["name"])
        ]

    # -- status ------------------------------------------------------------------------------

    def _status(self) -> Object:
        current, newest = (each["metadata"]["name"] for each in (self._current, self._update))
        pods = [pod for pod in self._pods.values() if not is_finished(pod)]
        counts = {
            "replicas": len(pods),
            "readyReplicas": sum(map(is_ready, pods)),
            "currentReplicas": self._count(self._current),
            "updatedReplicas": self._count(self._update),
            "availableReplicas": sum(
                available_in(self._observed, pod, self._spec.get("minReadySeconds") or 0) == 0
                for pod in pods
            ),
        }
        complete = counts["updatedReplicas"] == counts["replicas"] == counts[
            "readyReplicas"
        ] and counts["replicas"] == len(self._wanted)
        rolling = (self._spec.get("updateStrategy") or {}).get("type") == "RollingUpdate"
        if rolling and complete and self._before.get("currentRevision"):
            current, counts["currentReplicas"] = newest, counts["updatedReplicas"]
        shown = ("replicas", "availableReplicas")
        return {
            "observedGeneration": self._obj["metadata"].get("generation", 0),
            **{key: value for key, value in counts.items() if value or key in shown},
            "currentRevision": current,
            "updateRevision": newest,
            "collisionCount": self._before.get("collisionCount", 0),
        }

    def _forget(self) -> Steps:
        live = {self._revision(pod) for pod in self._pods.values()}
        live |= {self._current["metadata"]["name"], self._update["metadata"]["name"]}
        limit = self._spec.get("revisionHistoryLimit", 10)
        return forget_old(self._revisions, live, limit)


#: Kinds of owners that the retention policy sets on claims.
_RETAINERS = frozenset(("StatefulSet", "Pod"))
