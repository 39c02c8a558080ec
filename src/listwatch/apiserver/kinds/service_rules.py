"""The rules of services and endpoints (`pkg/apis/core/validation`)."""

from typing import Any

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import (
    address as ip_address,
)
from listwatch.apiserver.kinds.rules import (
    address_range,
    label,
    port_name_or_number,
    port_number,
    qualified_name,
    reachable_address,
    subdomain,
    validate_labels,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

#: The types of services with node ports.
WITH_NODE_PORTS = frozenset(("NodePort", "LoadBalancer"))
#: The known types of services with addresses.
WITH_ADDRESS = WITH_NODE_PORTS | {"ClusterIP"}
_LONGEST_AFFINITY = 86_400
_TRAFFIC = ("Cluster", "Local")
_DISTRIBUTIONS = ("PreferClose", "PreferSameNode", "PreferSameZone")
_KUBELET_PORT = 10250
_RANGES_NOTE = "service.beta.kubernetes.io/load-balancer-source-ranges"
_BALANCED_ONLY = "may only be used when `type` is 'LoadBalancer'"
_FIXED = "may not change once set"


def check_service(obj: View) -> list[Cause]:
    """Return the violations of a service."""
    spec = obj.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or ()
    headless = spec.get("clusterIP") == "None"
    causes: list[Cause] = []
    if not ports and kind != "ExternalName" and not (headless and kind == "ClusterIP"):
        causes.append(required("spec.ports"))
    if kind == "LoadBalancer":
        why = f"may not expose port {_KUBELET_PORT} externally since it is used by kubelet"
        causes += [
            invalid_value(f"spec.ports[{index}]", port, why)
            for index, port in enumerate(ports)
            if port.get("port") == _KUBELET_PORT
        ]
    if kind in WITH_NODE_PORTS and headless:
        why = f"may not be set to 'None' for {kind} services"
        causes.append(invalid_value("spec.clusterIPs[0]", "None", why))
    if kind == "ExternalName":
        causes += _check_external_name(spec)
    names: set[str] = set()
    for index, port in enumerate(ports):
        causes += _check_port(port, f"spec.ports[{index}]", names, alone=len(ports) == 1)
    causes += validate_labels(spec.get("selector"), "spec.selector")
    causes += _check_affinity(spec)
    for index, each in enumerate(spec.get("externalIPs") or ()):
        causes += reachable_address(f"spec.externalIPs[{index}]", each, loopback=False)
    return causes + _check_repeated(spec) + _check_balancing(obj) + _check_traffic(spec)


def _check_external_name(spec: View) -> list[Cause]:
    why = "may not be set when `type` is 'ExternalName'"
    causes = []
    if spec.get("clusterIPs") or spec.get("clusterIP"):
        causes.append(forbidden_value("spec.clusterIPs", why))
    if spec.get("ipFamilies"):
        causes.append(forbidden_value("spec.ipFamilies", why))
    if spec.get("ipFamilyPolicy") is not None:
        causes.append(forbidden_value("spec.ipFamilyPolicy", why))
    name = (spec.get("externalName") or "").removesuffix(".")
    where = "spec.externalName"
    return causes + (subdomain(where, name) if name else [required(where)])


def _check_port(port: View, path: str, names: set[str], *, alone: bool) -> list[Cause]:
    name, causes = port.get("name"), list[Cause]()
    if name:
        causes += label(f"{path}.name", name)
        if name in names:
            causes.append(duplicate(f"{path}.name", name))
        names.add(name)
    elif not alone:
        causes.append(required(f"{path}.name"))
    causes += port_number(f"{path}.port", port.get("port", 0))
    causes += port_name_or_number(f"{path}.targetPort", port.get("targetPort"))
    if port.get("appProtocol") is not None:
        causes += qualified_name(f"{path}.appProtocol", port["appProtocol"])
    return causes


def _check_affinity(spec: View) -> list[Cause]:
    where, affinity = "spec.sessionAffinityConfig", spec.get("sessionAffinity")
    if affinity != "ClientIP":
        return []
    config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    seconds = config.get("timeoutSeconds")
    if seconds is None or 0 < seconds <= _LONGEST_AFFINITY:
        return []
    why = f"must be greater than 0 and less than {_LONGEST_AFFINITY}"
    return [invalid_value(f"{where}.clientIP.timeoutSeconds", seconds, why)]


def _check_repeated(spec: View) -> list[Cause]:
    ports = spec.get("ports") or ()
    causes: list[Cause] = []
    if spec.get("type") == "ClusterIP":
        why = "may not be used when `type` is 'ClusterIP'"
        causes += [
            forbidden_value(f"spec.ports[{index}].nodePort", why)
            for index, port in enumerate(ports)
            if port.get("nodePort")
        ]
    for key, suffix in (("nodePort", ".nodePort"), ("port", "")):
        seen: set[tuple[Any, Any]] = set()
        for index, port in enumerate(ports):
            found = (port.get("protocol"), port.get(key, 0))
            if found in seen and (found[1] or not suffix):
                causes.append(duplicate(f"spec.ports[{index}]{suffix}", found[1]))
            seen.add(found)
    return causes


def _check_balancing(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    balanced = spec.get("type") == "LoadBalancer"
    where, ranges = "spec.LoadBalancerSourceRanges", spec.get("loadBalancerSourceRanges") or ()
    noted = (obj.get("metadata") or {}).get("annotations") or {}
    causes: list[Cause] = []
    if ranges:
        if not balanced:
            causes.append(forbidden_value(where, _BALANCED_ONLY))
        for index, each in enumerate(ranges):
            causes += address_range(f"{where}[{index}]", each.strip())
    elif _RANGES_NOTE in noted:
        where, text = f"metadata.annotations[{_RANGES_NOTE}]", noted[_RANGES_NOTE].strip()
        if not balanced:
            causes.append(forbidden_value(where, _BALANCED_ONLY))
        for each in text.split(",") if text else ():
            causes += address_range(where, each.strip())
    if not balanced and spec.get("allocateLoadBalancerNodePorts") is not None:
        causes.append(forbidden_value("spec.allocateLoadBalancerNodePorts", _BALANCED_ONLY))
    chosen, where = spec.get("loadBalancerClass"), "spec.loadBalancerClass"
    if chosen is not None:
        causes += (
            qualified_name(where, chosen) if balanced else [forbidden_value(where, _BALANCED_ONLY)]
        )
    return causes


def _check_traffic(spec: View) -> list[Cause]:
    kind, causes = spec.get("type"), list[Cause]()
    outside, inside = spec.get("externalTrafficPolicy"), spec.get("internalTrafficPolicy")
    reachable = kind in WITH_NODE_PORTS or (kind == "ClusterIP" and spec.get("externalIPs"))
    if outside and not reachable:
        why = "may only be set for externally-accessible services"
        causes.append(invalid_value("spec.externalTrafficPolicy", outside, why))
    elif outside and outside not in _TRAFFIC:
        causes.append(not_supported("spec.externalTrafficPolicy", outside, _TRAFFIC))
    number = spec.get("healthCheckNodePort")
    if number and not (kind == "LoadBalancer" and outside == "Local"):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        causes.append(invalid_value("spec.healthCheckNodePort", number, why))
    if inside is not None and inside not in _TRAFFIC:
        causes.append(not_supported("spec.internalTrafficPolicy", inside, _TRAFFIC))
    chosen = spec.get("trafficDistribution")
    if chosen is not None and chosen not in _DISTRIBUTIONS:
        causes.append(not_supported("spec.trafficDistribution", chosen, _DISTRIBUTIONS))
    return causes


def check_service_update(new: View, old: View) -> list[Cause]:
    """Return a service's changes of immutable fields."""
    after, before = new.get("spec") or {}, old.get("spec") or {}
    kinds = {after.get("type"), before.get("type")}
    causes: list[Cause] = []
    if "ExternalName" not in kinds:
        address = before.get("clusterIP")
        if address and after.get("clusterIP") != address:
            causes.append(invalid_value("spec.clusterIPs[0]", [after.get("clusterIP")], _FIXED))
        had, has = before.get("ipFamilies") or (), after.get("ipFamilies") or ()
        if had and has and had[0] != has[0]:
            causes.append(invalid_value("spec.ipFamilies[0]", list(has), _FIXED))
    chosen = after.get("loadBalancerClass")
    if kinds == {"LoadBalancer"} and chosen != before.get("loadBalancerClass"):
        causes.append(invalid_value("spec.loadBalancerClass", chosen, _FIXED))
    return causes


def check_endpoints(obj: View) -> list[Cause]:
    """Return the violations of endpoints."""
    causes: list[Cause] = []
    for index, subset in enumerate(obj.get("subsets") or ()):
        here = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            why = "must specify `addresses` or `notReadyAddresses`"
            causes.append(required(here, why))
        for group in ("addresses", "notReadyAddresses"):
            for number, each in enumerate(subset.get(group) or ()):
                causes += _check_address(each, f"{here}.{group}[{number}]")
        ports = subset.get("ports") or ()
        for number, port in enumerate(ports):
            causes += _check_endpoint_port(port, f"{here}.ports[{number}]", alone=len(ports) == 1)
    return causes


def _check_address(address: View, path: str) -> list[Cause]:
    where, ip = f"{path}.ip", address.get("ip", "")
    # the server reports an invalid address twice: as such, and as unreachable
    causes = ip_address(where, ip)
    if address.get("hostname"):
        causes += label(f"{path}.hostname", address["hostname"])
    if address.get("nodeName") is not None:
        causes += subdomain(f"{path}.nodeName", address["nodeName"])
    return causes + reachable_address(where, ip)


def _check_endpoint_port(port: View, path: str, *, alone: bool) -> list[Cause]:
    causes: list[Cause] = []
    if port.get("name"):
        causes += label(f"{path}.name", port["name"])
    elif not alone:
        causes.append(required(f"{path}.name"))
    causes += port_number(f"{path}.port", port.get("port", 0))
    if port.get("appProtocol") is not None:
        causes += qualified_name(f"{path}.appProtocol", port["appProtocol"])
    return causes
