"""When a Job ends early or late: its failure and success policies, and limits for each index."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from listwatch.apiserver.workloads.observed import View

_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"


class Verdict(NamedTuple):
    """What a Job's failure policy says of a failed pod.

    Attributes:
        action: of the first rule that matches: "FailJob", "FailIndex", "Ignore" or "Count"; "" if
            none does.
        message: why the Job fails, with "FailJob".
    """

    action: str = ""
    message: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether the pod counts towards the Job's limits."""
        return self.action != "Ignore"


def verdict_on(spec: View, pod: View) -> Verdict:
    """Return what a Job says of a failed pod (`pkg/controller/job/pod_failure_policy.go`)."""
    policy = spec.get("podFailurePolicy") or {}
    metadata = pod["metadata"]
    named = f"{metadata['namespace']}/{metadata['name']}"
    for index, rule in enumerate(policy.get("rules") or ()):
        action = rule["action"]
        codes = rule.get("onExitCodes")
        if codes is not None:
            container = next((each for each in _ended(pod) if _has_code(codes, each)), None)
            if container is None:
                continue
            message = (
                f"Container {container['name']} for pod {named} failed with exit code "
                f"{container['state']['terminated']['exitCode']} matching {action} rule at index "
                f"{index}"
            )
        else:
            kind = _condition_of(rule.get("onPodConditions") or (), pod)
            if kind is None:
                continue
            message = f"Pod {named} has condition {kind} matching {action} rule at index {index}"
        return Verdict(action, message if action == "FailJob" else "")
    return Verdict()


def _ended(pod: View) -> Iterator[View]:
    status = pod.get("status") or {}
    for group in ("containerStatuses", "initContainerStatuses"):
        for each in status.get(group) or ():
            if (each.get("state") or {}).get("terminated"):
                yield each


def _has_code(rule: View, container: View) -> bool:
    code = container["state"]["terminated"].get("exitCode", 0)
    if not code or rule.get("containerName") not in {None, container["name"]}:
        return False
    return (code in rule["values"]) is (rule["operator"] == "In")


def _condition_of(patterns: Iterable[View], pod: View) -> str | None:
    """Return the type of the first condition of a pod that matches a pattern."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        for pattern in patterns:
            wanted = pattern.get("status", "True")
            if (each.get("type"), each.get("status")) == (pattern["type"], wanted):
                return str(pattern["type"])
    return None


def success_by_policy(spec: View, succeeded: set[int]) -> str:
    """Return why the indexes that have succeeded suffice; "" if they don't."""
    policy = spec.get("successPolicy") or {}
    for number, rule in enumerate(policy.get("rules") or ()):
        listed, count = rule.get("succeededIndexes"), rule.get("succeededCount")
        required = None if listed is None else read_indexes(listed)
        done = len(succeeded if required is None else succeeded & required)
        enough = count if count is not None else len(required or ())
        if done >= enough:
            return f"Matched rules at index {number}"
    return ""


class IndexFailures:
    """The failures of each index of a Job with `backoffLimitPerIndex`.

    Args:
        spec: the Job's.
        pods: its pods, by index.
        known: the indexes known to have failed.

    Attributes:
        failed: the indexes that have failed for good.
    """

    def __init__(self, spec: View, pods: Iterable[tuple[int, View]], known: set[int]) -> None:
        self.failed = set(known)
        self._last: dict[int, tuple[int, int]] = {}
        self._newest: dict[int, str] = {}
        limit = spec["backoffLimitPerIndex"]
        for index, pod in pods:
            counts = _count(pod, _FAILURES), _count(pod, _IGNORED)
            if (pod.get("status") or {}).get("phase") == "Failed":
                verdict = verdict_on(spec, pod)
                if verdict.action == "FailIndex" or (verdict.is_counted and counts[0] >= limit):
                    self.failed.add(index)
                step = (1, 0) if verdict.is_counted else (0, 1)
                counts = counts[0] + step[0], counts[1] + step[1]
                if sum(counts) > sum(self._last.get(index, (0, 0))):
                    self._newest[index] = pod["metadata"]["uid"]
            # the pod that replaces a failed one holds its counts
            elif sum(counts) >= sum(self._last.get(index, (0, 0))):
                self._newest.pop(index, None)
            self._last[index] = max(self._last.get(index, (0, 0)), counts, key=sum)

    def annotations(self, index: int) -> dict[str, str]:
        """Return the annotations with which a new pod of an index holds its failures."""
        failures, ignored = self._last.get(index, (0, 0))
        return {_FAILURES: str(failures), **({_IGNORED: str(ignored)} if ignored else {})}

    def of(self, index: int) -> int:
        """Return the number of failures of an index, ignored ones included."""
        return sum(self._last.get(index, (0, 0)))

    def unreplaced(self) -> set[str]:
        """Return the uids of failed pods whose counts no other pod holds yet."""
        return {uid for index, uid in self._newest.items() if index not in self.failed}


def _count(pod: View, name: str) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def read_indexes(text: str) -> set[int]:
    """Return the numbers in a text such as `0,2-4`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def written_indexes(indexes: Iterable[int]) -> str:
    """Return numbers as a text such as `0,2-4`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1][1:] = [index]
        else:
            parts.append([index])
    return ",".join(
        f"{part[0]}"
        if len(part) == 1
        else f"{part[0]}{'-' if part[1] > part[0] + 1 else ','}{part[1]}"
        for part in parts
    )
