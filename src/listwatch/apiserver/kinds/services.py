"""Service, Endpoints and EndpointSlice."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.addresses import FIRST_PORT, LAST_PORT, Addresses, node_ports
from listwatch.apiserver.kinds.cells import at, field, join, labels, more, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.rules import (
    IP_WORDS,
    is_address,
    known_values,
    label,
    reachable_address,
    subdomain,
)
from listwatch.apiserver.kinds.service_rules import (
    WITH_ADDRESS,
    WITH_NODE_PORTS,
    check_endpoints,
    check_service,
    check_service_update,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    invalid_value,
    not_supported,
    required,
)

_ADDRESS_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def allocate(new: Object, old: Object | None, addresses: Addresses) -> list[Cause]:
    """Allocate what a service's type needs, in place; return the violations."""
    spec, before = new["spec"], (old or {}).get("spec") or {}
    causes = _check_families(spec)
    if causes or spec["type"] == "ExternalName":
        return causes
    if old is None:
        causes = _check_stacks(spec)
        if causes:
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
        # the targets of such a service are unknown, so it may use both families
        spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        families = spec.setdefault("ipFamilies", ["IPv4"])
        if spec["ipFamilyPolicy"] != "SingleStack" and len(families) == 1:
            families.append("IPv6" if families == ["IPv4"] else "IPv4")
    elif address == "None":
        spec.setdefault("ipFamilies", ["IPv4"])
    else:
        spec.setdefault("ipFamilies", ["IPv6" if ":" in address else "IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] in WITH_NODE_PORTS:
        causes += _allocate_ports(spec, set(node_ports(before)), addresses)
    if needs_health_check(spec) and not causes:
        causes += _allocate_health_check(spec, before, addresses)
    return causes


def needs_health_check(spec: View) -> bool:
    """Return whether nodes report on a separate port whether they have endpoints."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _allocate_health_check(spec: Object, before: View, addresses: Addresses) -> list[Cause]:
    where, wanted = "spec.healthCheckNodePort", spec.get("healthCheckNodePort")
    if not wanted:
        found = addresses.node_port()
        if found is None:
            return [invalid_value(where, 0, "failed to allocate a nodePort: range is full")]
        spec["healthCheckNodePort"] = found
    elif before.get("healthCheckNodePort") not in {None, wanted} and needs_health_check(before):
        return [invalid_value(where, wanted, "field is immutable")]
    elif wanted != before.get("healthCheckNodePort") and not (
        FIRST_PORT <= wanted <= LAST_PORT and addresses.claim(wanted)
    ):
        why = (
            "provided port is already allocated"
            if FIRST_PORT <= wanted <= LAST_PORT
            else "provided port is not in the valid range. The range of valid ports is "
            f"{FIRST_PORT}-{LAST_PORT}"
        )
        return [invalid_value(where, wanted, why)]
    return []


_ONE_OF_EACH = "may specify no more than one IP for each IP family"


def _check_families(spec: View) -> list[Cause]:
    """Return contradicting addresses and families (`ValidateServiceClusterIPsRelatedFields`)."""
    where, many = "spec.clusterIPs", spec.get("clusterIPs") or []
    address, families = spec.get("clusterIP"), spec.get("ipFamilies") or []
    if spec.get("type") == "ExternalName":
        return []
    causes: list[Cause] = []
    if many and not address:
        why = "must be empty when `clusterIP` is not specified"
        causes.append(invalid_value(where, many, why))
    elif many and many[0] != address:
        causes.append(invalid_value(where, many, "first value must match `clusterIP`"))
    causes += [
        duplicate(f"spec.ipFamilies[{index}]", family)
        for index, family in enumerate(families)
        if family in families[:index]
    ]
    causes += [
        not_supported(f"spec.ipFamilies[{index}]", family, ("IPv4", "IPv6"))
        for index, family in enumerate(families)
        if family not in {"IPv4", "IPv6"}
    ]
    policy = spec.get("ipFamilyPolicy")
    if policy is not None and policy not in _POLICIES:
        causes.append(not_supported("spec.ipFamilyPolicy", policy, _POLICIES))
    found = many or ([address] if address else [])
    wrong = [
        invalid_value(f"{where}[{index}]", each, IP_WORDS)
        for index, each in enumerate(found)
        if not is_address(each) and not (each == "None" and not index)
    ]
    if len(found) > 2:
        wrong.append(invalid_value(where, found, "may only hold up to 2 values"))
    if wrong:
        return causes + wrong
    if len(found) > 1 and (":" in found[0]) == (":" in found[1]):
        causes.append(invalid_value(where, found, _ONE_OF_EACH))
    for index, (each, family) in enumerate(zip(found, families, strict=False)):
        if each != "None" and (":" in each) != (family == "IPv6"):
            why = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            causes.append(invalid_value(f"{where}[{index}]", each, why))
    return causes


_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")


def _check_stacks(spec: View) -> list[Cause]:
    """Return the requests that a cluster with only IPv4 addresses can't fulfil."""
    if spec.get("clusterIP") == "None" and not spec.get("selector"):
        return []
    if spec.get("ipFamilyPolicy") == "RequireDualStack":
        why = "this cluster is not configured for dual-stack services"
        return [invalid_value("spec.ipFamilyPolicy", "RequireDualStack", why)]
    return [
        invalid_value(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")
        for index, family in enumerate(spec.get("ipFamilies") or ())
        if family == "IPv6"
    ]


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
    """Keep fields that an update omitted, and drop those of the service's previous type."""
    spec, before = new.setdefault("spec", {}), old.get("spec") or {}
    had, has = before.get("type"), spec.get("type")
    if has == "ExternalName":
        if had != has:
            _drop_unchanged(spec, before, "internalTrafficPolicy")
        if had != has and spec.get("clusterIP") == before.get("clusterIP"):
            for key in _ADDRESS_FIELDS:
                spec.pop(key, None)
    else:
        for key in _ADDRESS_FIELDS:
            if not spec.get(key) and key in before:
                spec[key] = before[key]
    if has in WITH_NODE_PORTS:
        known = {port.get("port"): port.get("nodePort") for port in before.get("ports") or ()}
        for port in spec.get("ports") or ():
            if known.get(port.get("port")) and not port.get("nodePort"):
                port["nodePort"] = known[port["port"]]
    elif had in WITH_NODE_PORTS and node_ports(spec) == node_ports(before):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
        _drop_unchanged(spec, before, "externalTrafficPolicy")
    _carry_health_check(spec, before)
    if had == "LoadBalancer" != has:
        _drop_unchanged(spec, before, "allocateLoadBalancerNodePorts")


def _carry_health_check(spec: Object, before: View) -> None:
    if needs_health_check(spec):
        if not spec.get("healthCheckNodePort") and "healthCheckNodePort" in before:
            spec["healthCheckNodePort"] = before["healthCheckNodePort"]
    elif needs_health_check(before):
        _drop_unchanged(spec, before, "healthCheckNodePort")


def _drop_unchanged(spec: Object, before: View, key: str) -> None:
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
    elif spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    if spec["type"] in WITH_NODE_PORTS or (spec["type"] == "ClusterIP" and spec.get("externalIPs")):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["type"] in WITH_ADDRESS:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    points = status_of(obj).setdefault("loadBalancer", {}).get("ingress")
    for point in points or () if spec["type"] == "LoadBalancer" else ():
        if point.get("ip"):
            point.setdefault("ipMode", "VIP")


def _default_endpoints(obj: Object) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _default_endpoint_slice(obj: Object) -> None:
    for port in obj.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")
    for key in ("endpoints", "ports"):
        obj[key] = obj.get(key) or None
    for endpoint in obj["endpoints"] or ():
        endpoint.setdefault("conditions", {})


def _check_endpoint_slice(obj: View) -> list[Cause]:
    kinds = known_values("discovery.v1.EndpointSlice", "addressType")
    kind = obj.get("addressType")
    if not kind:
        return [required("addressType")]
    if kind not in kinds:
        return [not_supported("addressType", kind, kinds)]
    causes: list[Cause] = []
    names: set[str] = set()
    for index, port in enumerate(obj.get("ports") or ()):
        name, where = port.get("name", ""), f"ports[{index}].name"
        if name:
            causes += label(where, name)
        if name in names:
            causes.append(duplicate(where, name))
        names.add(name)
    return causes


def _check_moved_endpoints(new: View, old: View) -> list[Cause]:
    # if the type changes, the server reports only that
    return _check_listed(new) if new.get("addressType") == old.get("addressType") else []


def _check_listed(obj: View) -> list[Cause]:
    kind = obj.get("addressType", "")
    if kind not in known_values("discovery.v1.EndpointSlice", "addressType"):
        return []
    causes: list[Cause] = []
    for index, endpoint in enumerate(obj.get("endpoints") or ()):
        here = f"endpoints[{index}]"
        if not endpoint.get("addresses"):
            causes.append(required(f"{here}.addresses", "must contain at least 1 address"))
        for number, address in enumerate(endpoint.get("addresses") or ()):
            causes += _check_endpoint(kind, address, f"{here}.addresses", number)
        if endpoint.get("nodeName") is not None:
            causes += subdomain(f"{here}.nodeName", endpoint["nodeName"])
        if endpoint.get("hostname") is not None:
            causes += label(f"{here}.hostname", endpoint["hostname"])
    return causes


def _check_endpoint(kind: str, address: str, path: str, index: int) -> list[Cause]:
    where = f"{path}[{index}]"
    if kind == "FQDN":
        return subdomain(where, address)
    if is_address(address) and (":" in address) != (kind == "IPv6"):
        return [invalid_value(path, address, f"must be an {kind} address")]
    return reachable_address(where, address)


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
    return more([str(each.get("port", "")) for each in ports])


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
        checks_whole=True,
        carry=carry_addresses,
        allocate=allocate,
        name_rule="label",
        create_on_update=True,
        returns_deleted=True,
        fields=paths("spec.clusterIP", "spec.type"),
        defaults=_default_service,
        rule=check_service,
        update_rule=check_service_update,
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
        rule=check_endpoints,
        cells={"Endpoints": _endpoints},
    ),
    "discovery.k8s.io/endpointslices": Kind(
        checks_whole=True,
        generation_with=("labels",),
        generation=True,
        immutable=("addressType",),
        checks_metadata=1,
        defaults=_default_endpoint_slice,
        rule=_check_endpoint_slice,
        new_rule=_check_listed,
        update_rule=_check_moved_endpoints,
        cells={
            "AddressType": field("addressType"),
            "Ports": _slice_ports,
            "Endpoints": _slice_endpoints,
        },
    ),
}
