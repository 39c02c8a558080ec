"""Service, Endpoints and EndpointSlice."""

from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.addresses import FIRST_PORT, LAST_PORT, Addresses, node_ports
from listwatch.apiserver.kinds.cells import at, field, join, labels, more, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.rules import (
    IP_WORDS,
    is_address,
    known_values,
    label,
    port_number,
)
from listwatch.schema.causes import Cause, duplicate, invalid_value, not_supported, required
from listwatch.selector import subdomain_problems

_WITH_NODE_PORTS = frozenset(("NodePort", "LoadBalancer"))


_ADDRESS_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def allocate(new: Object, old: Object | None, addresses: Addresses) -> list[Cause]:
    """Give a service, changed in place, what its type needs; returns what it may not have."""
    spec, before = new["spec"], (old or {}).get("spec") or {}
    causes: list[Cause] = []
    if spec["type"] == "ExternalName":
        return causes
    address = spec.get("clusterIP")
    if not address:
        address = spec["clusterIP"] = addresses.cluster_ip()
        if address is None:
            return [invalid_value("spec.clusterIPs", [], "failed to allocate a serviceIP: full")]
    elif address not in {"None", before.get("clusterIP")} and not addresses.claim(address):
        why = f"failed to allocate IP {address}: provided IP is already allocated"
        causes.append(invalid_value("spec.clusterIPs", [address], why))
    spec.setdefault("clusterIPs", [address])
    if address == "None" and not spec.get("selector"):
        # nobody knows where such a service leads, so it may lead to both families
        spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        families = spec.setdefault("ipFamilies", ["IPv4"])
        if spec["ipFamilyPolicy"] != "SingleStack" and len(families) == 1:
            families.append("IPv6" if families == ["IPv4"] else "IPv4")
    elif address == "None":
        spec.setdefault("ipFamilies", ["IPv4"])
    else:
        spec.setdefault("ipFamilies", ["IPv6" if ":" in address else "IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] in _WITH_NODE_PORTS:
        causes += _allocate_ports(spec, set(node_ports(before)), addresses)
    return causes


def _allocate_ports(spec: Object, own: set[int], addresses: Addresses) -> list[Cause]:
    causes: list[Cause] = []
    automatic = spec.get("allocateLoadBalancerNodePorts") is not False
    for index, port in enumerate(spec.get("ports") or ()):
        where = f"spec.ports[{index}].nodePort"
        wanted = port.get("nodePort")
        if not wanted:
            if automatic:
                found = addresses.node_port()
                if found is None:
                    why = "failed to allocate a nodePort: range is full"
                    return [*causes, invalid_value(where, 0, why)]
                port["nodePort"] = found
            continue
        # ports of two protocols may share a number
        if wanted in own:
            continue
        if not FIRST_PORT <= wanted <= LAST_PORT:
            why = (
                "provided port is not in the valid range. The range of valid ports is "
                f"{FIRST_PORT}-{LAST_PORT}"
            )
            causes.append(invalid_value(where, wanted, why))
        elif not addresses.claim(wanted):
            causes.append(invalid_value(where, wanted, "provided port is already allocated"))
        own.add(wanted)
    return causes


def carry_addresses(new: Object, old: View) -> None:
    """Keep what an update left out, and drop what goes with the type that a service had."""
    spec, before = new.setdefault("spec", {}), old.get("spec") or {}
    had, has = before.get("type"), spec.get("type")
    if has == "ExternalName":
        if had != has and spec.get("clusterIP") == before.get("clusterIP"):
            for key in _ADDRESS_FIELDS:
                spec.pop(key, None)
    else:
        for key in _ADDRESS_FIELDS:
            if not spec.get(key) and key in before:
                spec[key] = before[key]
    if has in _WITH_NODE_PORTS:
        known = {port.get("port"): port.get("nodePort") for port in before.get("ports") or ()}
        for port in spec.get("ports") or ():
            if known.get(port.get("port")) and not port.get("nodePort"):
                port["nodePort"] = known[port["port"]]
    elif had in _WITH_NODE_PORTS and node_ports(spec) == node_ports(before):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
        if spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy"):
            spec.pop("externalTrafficPolicy", None)
    if had == "LoadBalancer" != has:
        key = "allocateLoadBalancerNodePorts"
        if spec.get(key) == before.get(key):
            spec.pop(key, None)


def _default_service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("type", "ClusterIP")
    if spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", 10800)
    if spec["type"] in {"NodePort", "LoadBalancer"}:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    status_of(obj).setdefault("loadBalancer", {})


def _default_endpoints(obj: Object) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _default_endpoint_slice(obj: Object) -> None:
    for port in obj.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")
    obj.setdefault("endpoints", [])


def _check_endpoint_slice(obj: View) -> list[Cause]:
    kinds = known_values("discovery.v1.EndpointSlice", "addressType")
    kind = obj.get("addressType")
    if not kind:
        return [required("addressType")]
    if kind not in kinds:
        return [not_supported("addressType", kind, kinds)]
    return [
        required(f"endpoints[{index}].addresses", "must contain at least 1 address")
        for index, endpoint in enumerate(obj.get("endpoints") or ())
        if not endpoint.get("addresses")
    ]


def _check_service(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    kind = spec.get("type")
    ports = spec.get("ports") or ()
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    address = spec.get("clusterIP")
    if address not in {None, "", "None"} and not is_address(address):
        causes.append(invalid_value("spec.clusterIPs[0]", address, IP_WORDS))
    seen: set[tuple[Any, Any]] = set()
    names: set[str] = set()
    for index, port in enumerate(ports):
        here = f"spec.ports[{index}]"
        name = port.get("name")
        if not name:
            if len(ports) > 1:
                causes.append(required(f"{here}.name"))
        else:
            causes += label(f"{here}.name", name)
            if name in names:
                causes.append(duplicate(f"{here}.name", name))
            names.add(name)
        value = port.get("port", 0)
        if not 0 < value < 65_536:
            causes.append(
                invalid_value(f"{here}.port", value, "must be between 1 and 65535, inclusive")
            )
        causes += port_number(f"{here}.targetPort", port.get("targetPort"))
        key = (port.get("protocol"), value)
        if key in seen:
            causes.append(duplicate(here, {"protocol": port.get("protocol"), "port": value}))
        seen.add(key)
    if kind == "ExternalName":
        external = spec.get("externalName", "")
        if not external:
            causes.append(required("spec.externalName"))
        else:
            causes += [
                invalid_value("spec.externalName", external, why)
                for why in subdomain_problems(external.removesuffix("."))
            ]
    return causes


def _check_service_update(new: View, old: View) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    kinds = {after.get("type"), before.get("type")}
    address = before.get("clusterIP")
    if address and "ExternalName" not in kinds and after.get("clusterIP") != address:
        return [
            invalid_value("spec.clusterIPs[0]", [after.get("clusterIP")], "may not change once set")
        ]
    return []


def _check_endpoints(obj: View) -> list[Cause]:
    causes: list[Cause] = []
    for index, subset in enumerate(obj.get("subsets") or ()):
        here = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            why = "must specify `addresses` or `notReadyAddresses`"
            causes.append(required(here, why))
        for group in ("addresses", "notReadyAddresses"):
            causes += [
                invalid_value(f"{here}.{group}[{number}].ip", each.get("ip", ""), IP_WORDS)
                for number, each in enumerate(subset.get(group) or ())
                if not is_address(each.get("ip", ""))
            ]
        ports = subset.get("ports") or ()
        for number, port in enumerate(ports):
            where = f"{here}.ports[{number}]"
            if len(ports) > 1 and not port.get("name"):
                causes.append(required(f"{where}.name"))
            causes += port_number(f"{where}.port", port.get("port", 0))
    return causes


def _service_external(service: View, _: float) -> str:
    spec = service.get("spec") or {}
    external = list(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("type") == "LoadBalancer":
        points = at(service, "status.loadBalancer.ingress") or ()
        external = [each.get("ip") or each.get("hostname", "") for each in points] + external
        return ",".join(external) if external else "<pending>"
    return join(external)


def _service_ports(service: View, _: float) -> str:
    return join(
        f"{each.get('port')}"
        + (f":{each['nodePort']}" if each.get("nodePort") else "")
        + f"/{each.get('protocol', 'TCP')}"
        for each in at(service, "spec.ports") or ()
    )


def _endpoints(obj: View, _: float) -> str:
    found = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            ports = subset.get("ports") or [{}]
            found += [
                f"{address.get('ip')}:{port['port']}" if "port" in port else str(address.get("ip"))
                for port in ports
            ]
    return more(found)


def _slice_ports(obj: View, _: float) -> str:
    ports = obj.get("ports")
    if not ports:
        return "<unset>"
    return more([str(each.get("port", "*")) for each in ports])


def _slice_endpoints(obj: View, _: float) -> str:
    found = [
        address
        for endpoint in obj.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]
    return more(found) if found else "<unset>"


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "services": Kind(
        carry=carry_addresses,
        allocate=allocate,
        name_rule="label",
        create_on_update=True,
        returns_deleted=True,
        fields=paths("spec.clusterIP", "spec.type"),
        defaults=_default_service,
        rule=_check_service,
        update_rule=_check_service_update,
        cells={
            "Type": field("spec.type"),
            "Cluster-IP": text("spec.clusterIP"),
            "External-IP": _service_external,
            "Port(s)": _service_ports,
            "Selector": lambda obj, _: labels(at(obj, "spec.selector")),
        },
    ),
    "endpoints": Kind(
        deprecation="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        create_on_update=True,
        defaults=_default_endpoints,
        rule=_check_endpoints,
        cells={"Endpoints": _endpoints},
    ),
    "discovery.k8s.io/endpointslices": Kind(
        generation_with=("labels",),
        generation=True,
        immutable=("addressType",),
        defaults=_default_endpoint_slice,
        rule=_check_endpoint_slice,
        cells={
            "AddressType": field("addressType"),
            "Ports": _slice_ports,
            "Endpoints": _slice_endpoints,
        },
    ),
}
