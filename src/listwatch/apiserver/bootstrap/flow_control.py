"""The initial priority levels and flow schemas of a cluster.

Their values are those of `apiserver/pkg/apis/flowcontrol/bootstrap`. Clients see them, but this
server limits requests only when a test asks for it.
"""

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

#: Name, shares, lendable percentage; and number, hand size and length of queues, if it has some.
_LEVELS = (
    ("catch-all", 5, 0, None),
    ("global-default", 20, 50, (128, 6, 50)),
    ("leader-election", 10, 0, (16, 4, 50)),
    ("node-high", 40, 25, (64, 6, 50)),
    ("system", 30, 33, (64, 6, 50)),
    ("workload-high", 40, 50, (128, 6, 50)),
    ("workload-low", 100, 90, (128, 6, 50)),
)
_EVERYBODY = ("Group system:unauthenticated", "Group system:authenticated")
_MANAGER, _SCHEDULER = "User system:kube-controller-manager", "User system:kube-scheduler"
_SYSTEM_ACCOUNTS = "ServiceAccount kube-system/*"
_ALL: Object = {
    "resourceRules": [
        {
            "verbs": ["*"],
            "apiGroups": ["*"],
            "resources": ["*"],
            "clusterScope": True,
            "namespaces": ["*"],
        }
    ],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
}


def _for(verbs: str, group: str, resources: str, **scope: Any) -> Object:
    return {
        "verbs": verbs.split(),
        "apiGroups": [group],
        "resources": resources.split(),
        **(scope or {"namespaces": ["*"]}),
    }


_PROBES: Object = {
    "nonResourceRules": [
        {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]},
    ]
}
_LEASES: Object = {
    "resourceRules": [_for("get create update", "coordination.k8s.io", "leases")],
}
_ENDPOINTS: Object = {"resourceRules": [_for("get create update", "", "endpoints")]}
_NODES: Object = {
    "resourceRules": [
        _for("*", "", "nodes nodes/status", clusterScope=True),
        _for("*", "coordination.k8s.io", "leases"),
    ]
}
_MIRROR = "ServiceAccount kube-system/endpointslicemirroring-controller"
_HIGH = "workload-high"
#: Name, level, precedence, distinguisher, subjects, rules.
_SCHEMAS = (
    ("exempt", "exempt", 1, "", ("Group system:masters",), _ALL),
    ("probes", "exempt", 2, "", _EVERYBODY, _PROBES),
    (
        "system-leader-election",
        "leader-election",
        100,
        "ByUser",
        (_MANAGER, _SCHEDULER, _SYSTEM_ACCOUNTS),
        _LEASES,
    ),
    (
        "endpoint-controller",
        _HIGH,
        150,
        "ByUser",
        (_MANAGER, "ServiceAccount kube-system/endpoint-controller", _MIRROR),
        _ENDPOINTS,
    ),
    ("workload-leader-election", "leader-election", 200, "ByUser", (_SYSTEM_ACCOUNTS,), _LEASES),
    ("system-node-high", "node-high", 400, "ByUser", ("Group system:nodes",), _NODES),
    ("system-nodes", "system", 500, "ByUser", ("Group system:nodes",), _ALL),
    ("kube-controller-manager", _HIGH, 800, "ByNamespace", (_MANAGER,), _ALL),
    ("kube-scheduler", _HIGH, 800, "ByNamespace", (_SCHEDULER,), _ALL),
    ("kube-system-service-accounts", _HIGH, 900, "ByNamespace", (_SYSTEM_ACCOUNTS,), _ALL),
    (
        "service-accounts",
        "workload-low",
        9000,
        "ByUser",
        ("Group system:serviceaccounts",),
        _ALL,
    ),
    ("global-default", "global-default", 9900, "ByUser", _EVERYBODY, _ALL),
    ("catch-all", "catch-all", 10000, "ByUser", _EVERYBODY, _ALL),
)


def priority_levels() -> Iterator[Object]:
    """Yield the priority levels."""
    exempt = {"nominalConcurrencyShares": 0, "lendablePercent": 0}
    yield _object("exempt", {"type": "Exempt", "exempt": exempt})
    for name, shares, lendable, queues in _LEVELS:
        response: Object = {"type": "Reject"}
        if queues is not None:
            names = ("queues", "handSize", "queueLengthLimit")
            response = {"type": "Queue", "queuing": dict(zip(names, queues, strict=True))}
        limited = {
            "nominalConcurrencyShares": shares,
            "lendablePercent": lendable,
            "limitResponse": response,
        }
        yield _object(name, {"type": "Limited", "limited": limited})


def flow_schemas() -> Iterator[Object]:
    """Yield the flow schemas."""
    for name, level, precedence, distinguisher, subjects, rules in _SCHEMAS:
        spec: Object = {
            "priorityLevelConfiguration": {"name": level},
            "matchingPrecedence": precedence,
            "rules": [{"subjects": [_subject(each) for each in subjects], **rules}],
        }
        if distinguisher:
            spec["distinguisherMethod"] = {"type": distinguisher}
        found = {
            "type": "Dangling",
            "status": "False",
            "lastTransitionTime": None,
            "reason": "Found",
            "message": "This FlowSchema references the PriorityLevelConfiguration object named "
            f'"{level}" and it exists',
        }
        yield {**_object(name, spec), "status": {"conditions": [found]}}


def _object(name: str, spec: Object) -> Object:
    annotations = {"apf.kubernetes.io/autoupdate-spec": "true"}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def _subject(text: str) -> Object:
    kind, _, name = text.partition(" ")
    if kind == "ServiceAccount":
        namespace, _, name = name.partition("/")
        return {"kind": kind, "serviceAccount": {"namespace": namespace, "name": name}}
    return {"kind": kind, kind.lower(): {"name": name}}
