"""The resources that the pods of each node request."""

from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.rules import quantity

View = Mapping[str, Any]

#: The resource that counts pods.
PODS_RESOURCE = "pods"


def thousandths(amounts: Mapping[str, str]) -> dict[str, int]:
    """Return amounts of resources in thousandths."""
    return {name: round(quantity(str(amount)) * 1000) for name, amount in amounts.items()}


def requests_of(pod: View) -> dict[str, int]:
    """Return a pod's requests: those of all containers, or of the largest init container."""
    spec = pod.get("spec") or {}
    total: dict[str, int] = {PODS_RESOURCE: 1000}
    largest: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wanted = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, wanted)
        else:
            _raise(largest, wanted)
    for container in spec.get("containers") or ():
        _add(total, _requests(container))
    _raise(total, largest)
    _add(total, thousandths(spec.get("overhead") or {}))
    return total


def _requests(container: View) -> dict[str, int]:
    return thousandths((container.get("resources") or {}).get("requests") or {})


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = max(total.get(name, 0), amount)


class Occupancy:
    """Sums of requests by node, kept up to date pod by pod."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, dict[str, int]]] = {}
        self._nodes: dict[str, dict[str, int]] = {}

    def put(self, key: str, pod: View) -> None:
        """Count a pod on its node, if it has one and still runs there."""
        node = (pod.get("spec") or {}).get("nodeName", "")
        phase = (pod.get("status") or {}).get("phase")
        if not node or phase in {"Succeeded", "Failed"}:
            self.drop(key)
        elif key not in self._pods:
            wanted = requests_of(pod)
            self._pods[key] = node, wanted
            _add(self._nodes.setdefault(node, {}), wanted)

    def drop(self, key: str) -> None:
        """Stop counting a pod."""
        known = self._pods.pop(key, None)
        if known is not None:
            total = self._nodes[known[0]]
            for name, amount in known[1].items():
                total[name] -= amount

    def on(self, node: str) -> Mapping[str, int]:
        """Return the resources in use on a node."""
        return self._nodes.get(node, {})
