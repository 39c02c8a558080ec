"""APIService, FlowSchema and PriorityLevelConfiguration."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import at, field, text
from listwatch.apiserver.kinds.kind import Kind, Object, View


def _default_flow_schema(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("matchingPrecedence", 1000)
    obj.setdefault("status", {})


def _default_priority_level(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    exempt, limited = spec.get("exempt"), spec.get("limited")
    if exempt is None and spec.get("type") == "Exempt":
        exempt = spec["exempt"] = {}
    for part, shares in ((exempt, 0), (limited, 30)):
        if part is not None:
            part.setdefault("nominalConcurrencyShares", shares)
            part.setdefault("lendablePercent", 0)
    queuing = ((limited or {}).get("limitResponse") or {}).get("queuing")
    if queuing is not None:
        for key, value in (("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)):
            queuing[key] = queuing.get(key) or value


def _default_api_service(obj: Object) -> None:
    service = obj.setdefault("spec", {}).get("service")
    if service is not None:
        service.setdefault("port", 443)
    obj.setdefault("status", {})


def _admit_api_service(obj: Object) -> None:
    if (obj.get("spec") or {}).get("service") is None:
        obj["status"] = {
            "conditions": [
                {
                    "type": "Available",
                    "status": "True",
                    "lastTransitionTime": obj["metadata"]["creationTimestamp"],
                    "reason": "Local",
                    "message": "Local APIServices are always available",
                }
            ]
        }


def _dangling(schema: View, _: float) -> str:
    conditions = at(schema, "status.conditions") or ()
    return next((each["status"] for each in conditions if each.get("type") == "Dangling"), "?")


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "componentstatuses": Kind(deprecation="v1 ComponentStatus is deprecated in v1.19+"),
    "apiregistration.k8s.io/apiservices": Kind(
        unconditional_update=False,
        defaults=_default_api_service,
        admit=_admit_api_service,
        keeps_status=True,
        cells={
            "Service": lambda obj, _: (
                f"{at(obj, 'spec.service.namespace')}/{at(obj, 'spec.service.name')}"
                if at(obj, "spec.service")
                else "Local"
            ),
            "Available": lambda obj, _: next(
                (
                    each.get("status", "")
                    for each in at(obj, "status.conditions") or ()
                    if each.get("type") == "Available"
                ),
                "Unknown",
            ),
        },
    ),
    "flowcontrol.apiserver.k8s.io/flowschemas": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_flow_schema,
        cells={
            "PriorityLevel": text("spec.priorityLevelConfiguration.name"),
            "MatchingPrecedence": field("spec.matchingPrecedence", 0),
            "DistinguisherMethod": text("spec.distinguisherMethod.type"),
            "MissingPL": _dangling,
        },
    ),
    "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_priority_level,
    ),
}
