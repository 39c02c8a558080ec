"""Pod fields that an update, a resize or a write of ephemeral containers may change."""

from typing import Any

import pytest

from kind_causes import of_change
from listwatch.apiserver.kinds.catalog import built_in

CONTAINER = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
KEY = {"key": "a", "operator": "Exists"}
OTHER = {"key": "b", "operator": "Exists"}
GATES = {"schedulingGates": [{"name": "g"}]}


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [CONTAINER], **spec}}


def placed(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        }
    }


TERM = (
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
)


@pytest.mark.parametrize(
    ("new", "old", "broken"),
    [
        (pod(), pod(), []),
        (pod(containers=[{**CONTAINER, "image": "j"}]), pod(), []),
        (
            pod(containers=[{**CONTAINER, "image": " j"}]),
            pod(),
            ["spec.containers[0].image"],
        ),
        (pod(containers=[CONTAINER, CONTAINER]), pod(), ["spec.containers"]),
        (pod(hostNetwork=True), pod(), ["spec"]),
        (pod(activeDeadlineSeconds=5), pod(), []),
        (pod(activeDeadlineSeconds=5), pod(activeDeadlineSeconds=6), []),
        (
            pod(activeDeadlineSeconds=7, hostNetwork=True),
            pod(activeDeadlineSeconds=6),
            ["spec.activeDeadlineSeconds"],
        ),
        (pod(), pod(activeDeadlineSeconds=6), ["spec.activeDeadlineSeconds"]),
        (pod(activeDeadlineSeconds=-1), pod(), ["spec.activeDeadlineSeconds"]),
        (pod(tolerations=[KEY, OTHER]), pod(tolerations=[KEY]), []),
        (pod(tolerations=[OTHER]), pod(tolerations=[KEY]), ["spec.tolerations"]),
        (
            pod(tolerations=[{**KEY, "effect": "NoExecute", "tolerationSeconds": 5}]),
            pod(tolerations=[{**KEY, "effect": "NoExecute"}]),
            [],
        ),
        (pod(terminationGracePeriodSeconds=1), pod(terminationGracePeriodSeconds=-1), []),
        (pod(terminationGracePeriodSeconds=2), pod(terminationGracePeriodSeconds=-1), ["spec"]),
        (pod(), pod(**GATES), []),
        (pod(**GATES), pod(), ["spec.schedulingGates"]),
        (pod(**GATES, nodeSelector={"a": "b"}), pod(**GATES), []),
        (
            pod(**GATES, nodeSelector={"a": "c"}),
            pod(**GATES, nodeSelector={"a": "b"}),
            ["spec.nodeSelector"],
        ),
        (pod(nodeSelector={"a": "b"}), pod(), ["spec"]),
        (pod(**GATES, **placed(KEY)), pod(**GATES), []),
        (pod(**GATES, **placed(KEY, OTHER)), pod(**GATES, **placed(KEY)), []),
        (pod(**GATES, **placed(OTHER)), pod(**GATES, **placed(KEY)), [TERM]),
        (pod(**GATES), pod(**GATES, **placed(KEY)), [TERM.removesuffix("[0]")]),
    ],
)
def test_what_of_a_pod_may_change(
    new: dict[str, Any], old: dict[str, Any], broken: list[str]
) -> None:
    assert of_change("pods", new, old) == broken


def of_part(part: str, new: dict[str, Any], old: dict[str, Any], **annotations: str) -> list[str]:
    metadata = {"name": "p", "annotations": annotations}
    causes = built_in("pods").part_rules[part](
        {**new, "metadata": metadata}, {**old, "metadata": metadata}
    )
    return [cause.field for cause in causes]


def sized(**resources: Any) -> dict[str, Any]:
    return pod(containers=[{**CONTAINER, "resources": resources}])


@pytest.mark.parametrize(
    ("new", "broken"),
    [
        (sized(requests={"cpu": "2"}), []),
        (sized(requests={"cpu": "2"}, limits={"cpu": "3"}), []),
        (sized(requests={"memory": "1Gi"}), ["spec.containers[0].resources.requests"]),
        (sized(requests={"cpu": "1", "example.com/a": "1"}), ["spec"]),
        (
            sized(
                requests={"cpu": "1", "memory": "1Gi"},
                limits={"cpu": "1", "memory": "1Gi"},
            ),
            ["spec"],
        ),
    ],
)
def test_a_resize_changes_amounts_of_cpu_and_memory(new: dict[str, Any], broken: list[str]) -> None:
    assert of_part("resize", new, pod()) == broken


@pytest.mark.parametrize(
    ("new", "old", "count"),
    [(["a"], [], 0), (["a", "b"], ["a"], 0), ([], ["a"], 1), (["b"], ["a"], 1)],
)
def test_ephemeral_containers_are_only_added(new: list[str], old: list[str], count: int) -> None:
    def debugged(names: list[str]) -> dict[str, Any]:
        return pod(ephemeralContainers=[{"name": name, "image": "i"} for name in names])

    found = of_part("ephemeralcontainers", debugged(new), debugged(old))
    assert found == ["spec.ephemeralContainers"] * count


@pytest.mark.parametrize("part", ["resize", "ephemeralcontainers"])
def test_a_static_pod_stays_as_its_node_says(part: str) -> None:
    assert of_part(part, pod(), pod(), **{"kubernetes.io/config.mirror": "x"}) == [""]
