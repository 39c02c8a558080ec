"""The rules of resource names and amounts, in nodes, containers, quotas and limits.

They are those of `pkg/apis/core/validation` and `pkg/apis/core/helper`.
"""

from listwatch.apiserver.kinds.rules import NOT_NEGATIVE, qualified_name, quantity
from listwatch.schema.causes import Cause, invalid_value

#: Resources that only have whole amounts.
_COUNTED = (
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
)
_COMPUTED = ("cpu", "memory", "ephemeral-storage")
#: Resources that a quota may name without a domain.
QUOTA_RESOURCES = frozenset(
    (
        *_COMPUTED,
        *(f"{group}.{name}" for group in ("requests", "limits") for name in _COMPUTED),
        "requests.storage",
        *_COUNTED,
    )
)
#: Resources that need no domain at all.
STANDARD_RESOURCES = QUOTA_RESOURCES | {"storage"}
_HUGE = ("hugepages-", "requests.hugepages-")


def is_extended(name: str) -> bool:
    """Return whether a resource is an extended one, not defined by Kubernetes."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def resource_name(path: str, name: str) -> list[Cause]:
    """Return why a name is not the name of a resource."""
    if name in STANDARD_RESOURCES:
        return []
    causes = qualified_name(path, name)
    if not causes and "/" not in name:
        if name.startswith(_HUGE):
            return []
        why = "must be a standard resource type or fully qualified"
        return [invalid_value(path, name, why)]
    return causes


def resource_amount(path: str, name: str, amount: str) -> list[Cause]:
    """Return why an amount of a resource is invalid."""
    value, causes = quantity(amount), list[Cause]()
    if value < 0:
        causes.append(invalid_value(path, amount, NOT_NEGATIVE))
    if value % 1 and (name in _COUNTED or is_extended(name)):
        causes.append(invalid_value(path, amount, "must be an integer"))
    return causes


def quota_resource(path: str, name: str, amount: str) -> list[Cause]:
    """Return why a quota can't limit a resource to this amount."""
    causes = resource_name(path, name)
    if "/" not in name and name not in QUOTA_RESOURCES and not name.startswith(_HUGE):
        causes.append(invalid_value(path, name, "must be a standard resource for quota"))
    return causes + resource_amount(path, name, amount)


def container_resource(path: str, name: str) -> list[Cause]:
    """Return why a container can't request a resource."""
    if name in _COMPUTED:
        return []
    causes = resource_name(path, name)
    if "/" not in name:
        if not name.startswith("hugepages-"):
            causes.append(invalid_value(path, name, "must be a standard resource for containers"))
    elif "kubernetes.io/" not in name and not is_extended(name):
        causes.append(invalid_value(path, name, "doesn't follow extended resource name standard"))
    return causes
