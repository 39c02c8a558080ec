"""Failures of pods and nodes, chosen by a test."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from listwatch.selector import LabelSelector, parse_label_selector

View = Mapping[str, Any]

#: On a pod, or in its template: how it fails. On a node: "NodeLost".
FAIL = "listwatch/fail"
#: On a pod, or in its template: seconds until its containers complete.
RUN_SECONDS = "listwatch/run-seconds"

ERROR, OOM_KILLED, CRASH_LOOP = "Error", "OOMKilled", "CrashLoopBackOff"
IMAGE_PULL, EVICTED, NODE_LOST = "ImagePullBackOff", "Evicted", "NodeLost"
#: The ways in which a pod can fail.
REASONS = (CRASH_LOOP, ERROR, EVICTED, IMAGE_PULL, NODE_LOST, OOM_KILLED)


class PodFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pods fail, and how. A condition left empty matches every pod.

    Attributes:
        reason: "CrashLoopBackOff" (containers exit at once, each time), "Error" (the same, but a
            pod that must not restart them becomes Failed), "OOMKilled", "ImagePullBackOff" (they
            never start), "Evicted" (by their node), "NodeLost" (their node becomes unreachable).
        namespace: a pattern, such as `team-*`.
        name: a pattern, such as `web-*`.
        selector: a label selector, such as `app=web`.
        times: maximum container exits, evictions or failing pods; 0 for no limit.
        exit_code: of exiting containers.
    """

    reason: str
    namespace: str = "*"
    name: str = "*"
    selector: str = ""
    times: int = 0
    exit_code: int = 1

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ValueError(f"no such failure: {self.reason}; there are {', '.join(REASONS)}")
        parse_label_selector(self.selector)  # raises if it is invalid


class _Rule:
    """A failure, and the attempts it has hit: each counts once, however often it is checked."""

    def __init__(self, failure: PodFailure) -> None:
        self.failure = failure
        self._selector: LabelSelector = parse_label_selector(failure.selector)
        self._hits: set[tuple[str, int]] = set()

    def hits(self, pod: View, attempt: int) -> bool:
        metadata = pod["metadata"]
        failure = self.failure
        if not (
            fnmatchcase(metadata["namespace"], failure.namespace)
            and fnmatchcase(metadata["name"], failure.name)
            and self._selector.matches(metadata.get("labels") or {})
        ):
            return False
        hit = metadata["uid"], attempt
        if failure.times and hit not in self._hits and len(self._hits) >= failure.times:
            return False
        self._hits.add(hit)
        return True


class Failures:
    """The active failures. For the event loop of the store."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._lost: set[str] = set()

    def add(self, failure: PodFailure) -> None:
        """Make pods fail from now on; the first failure that matches a pod applies."""
        self._rules.append(_Rule(failure))

    def clear(self) -> None:
        """End all failures of pods, and recover all nodes."""
        self._rules.clear()
        self._lost.clear()

    def lose(self, node: str) -> None:
        """Make a node unreachable."""
        self._lost.add(node)

    def recover(self, node: str) -> None:
        """Recover a node."""
        self._lost.discard(node)

    def is_lost(self, node: View) -> bool:
        """Return whether a node is unreachable."""
        metadata = node["metadata"]
        annotations = metadata.get("annotations") or {}
        return metadata["name"] in self._lost or annotations.get(FAIL) == NODE_LOST

    def of(self, pod: View, attempt: int) -> PodFailure | None:
        """Return how an attempt to run a pod fails, or None; `attempt` counts its restarts."""
        annotated = (pod["metadata"].get("annotations") or {}).get(FAIL)
        if annotated in REASONS:
            return PodFailure(annotated)
        for rule in self._rules:
            if rule.hits(pod, attempt):
                return rule.failure
        return None
