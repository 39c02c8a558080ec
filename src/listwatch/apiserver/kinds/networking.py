"""Ingress, IngressClass, NetworkPolicy, ServiceCIDR and IPAddress."""

import re
from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import NONE, at, field, more, selector, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.rules import (
    IP_WORDS,
    RANGE_WORDS,
    address_range,
    is_address,
    known_values,
    label,
    label_selector,
    network,
    path_name,
    port_name,
    port_name_or_number,
    port_number,
    subdomain,
)
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required

_BAD_SEQUENCES = ("//", "/./", "/../", "%2f", "%2F")


_BAD_ENDS = ("/..", "/.")


def _check_ingress(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    default, rules = spec.get("defaultBackend"), spec.get("rules") or ()
    if not rules and default is None:
        why = "either `defaultBackend` or `rules` must be specified"
        causes.append(invalid_value("spec", spec.get("rules"), why))
    if default is not None:
        causes += _check_backend(default, "spec.defaultBackend")
    for index, rule in enumerate(rules):
        here = f"spec.rules[{index}]"
        if rule.get("host"):
            causes += _check_host(f"{here}.host", rule["host"])
        http = rule.get("http")
        if http is None:
            continue
        paths = http.get("paths") or ()
        if not paths:
            causes.append(required(f"{here}.http.paths"))
        for number, path in enumerate(paths):
            causes += _check_ingress_path(path, f"{here}.http.paths[{number}]")
    for index, encrypted in enumerate(spec.get("tls") or ()):
        here = f"spec.tls[{index}]"
        for number, host in enumerate(encrypted.get("hosts") or ()):
            causes += _check_name(f"{here}.hosts[{number}]", host)
        if encrypted.get("secretName"):
            causes += subdomain(f"{here}.secretName", encrypted["secretName"])
    if spec.get("ingressClassName") is not None:
        causes += subdomain("spec.ingressClassName", spec["ingressClassName"])
    return causes


_CLASS = "kubernetes.io/ingress.class"


def _check_new_ingress(obj: View) -> list[Cause]:
    chosen = (obj.get("spec") or {}).get("ingressClassName")
    noted = (obj["metadata"].get("annotations") or {}).get(_CLASS)
    if None in {chosen, noted} or chosen == noted:
        return []
    why = "must match `ingressClassName` when both are specified"
    return [invalid_value(f"annotations.{_CLASS}", noted, why)]


def _check_host(where: str, host: str) -> list[Cause]:
    address = is_address(host)
    why = "must be a DNS name, not an IP address"
    return ([invalid_value(where, host, why)] if address else []) + _check_name(where, host)


_WILDCARD_WORDS = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which "
    "must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric "
    "character (e.g. '*.example.com')"
)


def _check_name(where: str, host: str) -> list[Cause]:
    if "*" not in host:
        return subdomain(where, host)
    # a wildcard stands for one label
    if host.startswith("*.") and not subdomain(where, host[2:]):
        return []
    return [invalid_value(where, host, _WILDCARD_WORDS)]


def _check_ingress_path(path: View, here: str) -> list[Cause]:
    kind, text = path.get("pathType"), path.get("path", "")
    if kind is None:
        return [required(f"{here}.pathType", "pathType must be specified")]
    causes = []
    known = known_values("networking.v1.HTTPIngressPath", "pathType")
    if kind not in known:
        causes.append(not_supported(f"{here}.pathType", kind, known))
    elif not text.startswith("/") and (text or kind != "ImplementationSpecific"):
        causes.append(invalid_value(f"{here}.path", text, "must be an absolute path"))
    if kind in {"Exact", "Prefix"}:
        causes += [
            invalid_value(f"{here}.path", text, f"must not contain '{bad}'")
            for bad in _BAD_SEQUENCES
            if bad in text
        ]
        causes += [
            invalid_value(f"{here}.path", text, f"cannot end with '{bad}'")
            for bad in _BAD_ENDS
            if text.endswith(bad)
        ]
    return causes + _check_backend(path.get("backend") or {}, f"{here}.backend")


def _check_backend(backend: View, here: str) -> list[Cause]:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        return [invalid_value(here, "", "cannot set both resource and service backends")]
    if resource is not None:
        return _check_reference(resource, f"{here}.resource")
    if service is None:
        return [invalid_value(here, "", "resource or service backend is required")]
    causes: list[Cause] = []
    name = f"{here}.service.name"
    causes += label(name, service["name"]) if service.get("name") else [required(name)]
    port = service.get("port") or {}
    if port.get("name") and port.get("number"):
        causes.append(invalid_value(here, "", "cannot set both port name & port number"))
    elif port.get("number"):
        causes += port_number(f"{here}.service.port.number", port["number"])
    elif port.get("name"):
        causes += port_name(f"{here}.service.port.name", port["name"])
    else:
        causes.append(required(here, "port name or number is required"))
    return causes


_LONGEST_CONTROLLER = 250


def _check_ingress_class(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    where, controller = "spec.controller", spec.get("controller", "")
    causes: list[Cause] = []
    host, _, path = controller.partition("/")
    if len(controller) > _LONGEST_CONTROLLER:
        words = f"Too long: may not be more than {_LONGEST_CONTROLLER} bytes"
        causes.append(Cause(where, "FieldValueTooLong", words))
    if not controller:
        causes.append(required(where))
    elif not host or not path:
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        causes.append(invalid_value(where, controller, why))
    else:
        causes += subdomain(where, host)
        if not _PATH.fullmatch(path):
            causes.append(invalid_value(where, path, "Invalid path"))
    return causes + _check_parameters(spec.get("parameters"), "spec.parameters")


#: What may follow the domain in a controller's name (the path of RFC 3986).
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")


def _check_ingress_class_update(new: View, old: View) -> list[Cause]:
    after = (new.get("spec") or {}).get("controller", "")
    if after == (old.get("spec") or {}).get("controller", ""):
        return []
    return [invalid_value("spec.controller", after, "field is immutable")]


def _check_reference(reference: View, path: str) -> list[Cause]:
    group = reference.get("apiGroup")
    causes = [] if group is None else subdomain(f"{path}.apiGroup", group)
    for key in ("kind", "name"):
        where, value = f"{path}.{key}", reference.get(key)
        causes += path_name(where, value) if value else [required(where, f"{key} is required")]
    return causes


def _check_parameters(parameters: View | None, path: str) -> list[Cause]:
    if parameters is None:
        return []
    causes = _check_reference(parameters, path)
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    told = f"`parameters.scope` is set to '{scope}'"
    if scope not in {"Cluster", "Namespace", None}:
        causes.append(not_supported(f"{path}.scope", scope, ["Cluster", "Namespace"]))
    elif scope == "Namespace":
        where = f"{path}.namespace"
        causes += [required(where, told)] if namespace is None else label(where, namespace)
    elif scope == "Cluster" and namespace is not None:
        causes.append(forbidden_value(f"{path}.namespace", told))
    return causes


def _default_ingress(obj: Object) -> None:
    obj.setdefault("spec", {})
    status_of(obj).setdefault("loadBalancer", {})


def _default_ingress_class(obj: Object) -> None:
    parameters = obj.setdefault("spec", {}).get("parameters")
    if parameters is not None:
        parameters.setdefault("scope", "Cluster")


def _default_network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _check_network_policy(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = label_selector(spec.get("podSelector"), "spec.podSelector")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction) or ()):
            here = f"spec.{direction}[{index}]"
            for number, port in enumerate(rule.get("ports") or ()):
                causes += _check_policy_port(port, f"{here}.ports[{number}]")
            for number, peer in enumerate(rule.get(peers) or ()):
                causes += _check_peer(peer, f"{here}.{peers}[{number}]")
    types = spec.get("policyTypes") or ()
    if len(types) > 2:
        why = "may not specify more than two policyTypes"
        return [*causes, invalid_value("spec.policyTypes", list(types), why)]
    known = ["Ingress", "Egress"]  # in the server's order
    return causes + [
        not_supported(f"spec.policyTypes[{index}]", each, known)
        for index, each in enumerate(types)
        if each not in known
    ]


def _check_policy_port(port: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    first, last = port.get("port"), port.get("endPort")
    causes += port_name_or_number(f"{path}.port", first)
    if last is None:
        return causes
    where = f"{path}.endPort"
    if first is None:
        why = "may not be specified when `port` is not specified"
        return [invalid_value(where, last, why)]
    if isinstance(first, str):
        why = "may not be specified when `port` is non-numeric"
        return [invalid_value(where, last, why), *causes]
    if last < first:
        why = "must be greater than or equal to `port`"
        causes.append(invalid_value(where, last, why))
    return causes + port_number(where, last)


def _check_peer(peer: View, path: str) -> list[Cause]:
    causes = label_selector(peer.get("podSelector"), f"{path}.podSelector")
    causes += label_selector(peer.get("namespaceSelector"), f"{path}.namespaceSelector")
    return causes + _check_block(peer, path)


def _check_block(peer: View, path: str) -> list[Cause]:
    block = peer.get("ipBlock")
    if not peer:
        return [required(path, "must specify a peer")]
    if block is None:
        return []
    causes = _check_ranges(block, f"{path}.ipBlock")
    if len(peer) > 1:
        causes.append(forbidden_value(path, "may not specify both ipBlock and another peer"))
    return causes


def _check_ranges(block: View, path: str) -> list[Cause]:
    cidr = block.get("cidr", "")
    if not cidr:
        return [required(f"{path}.cidr")]
    whole = network(cidr)
    if whole is None:
        return [invalid_value(f"{path}.cidr", cidr, RANGE_WORDS)]
    causes = []
    for index, excepted in enumerate(block.get("except") or ()):
        where = f"{path}.except[{index}]"
        part = network(excepted)
        if part is None:
            causes.append(invalid_value(where, excepted, RANGE_WORDS))
        elif (
            part.version != whole.version
            or part.prefixlen <= whole.prefixlen
            or part.network_address not in whole
        ):
            causes.append(invalid_value(where, excepted, "must be a strict subset of `cidr`"))
    return causes


def _check_service_ranges(obj: View) -> list[Cause]:
    where, ranges = "spec.cidrs", (obj.get("spec") or {}).get("cidrs") or []
    if not ranges:
        return [required(where, "at least one CIDR required")]
    if len(ranges) > 2:
        return [invalid_value(where, ranges, "may only hold up to 2 values")]
    if len(ranges) == 2 and len({":" in each for each in ranges if network(each)}) < 2:
        return [invalid_value(where, ranges, "may specify no more than one IP for each IP family")]
    causes: list[Cause] = []
    for index, each in enumerate(ranges):
        causes += address_range(f"{where}[{index}]", each)
    return causes


def _check_service_ranges_update(new: View, old: View) -> list[Cause]:
    after, before = ((each.get("spec") or {}).get("cidrs") or [] for each in (new, old))
    where = "spec.cidrs"
    if after == before:
        return []
    if len(before) == 1 and len(after) == 2:
        # a second family may be added
        where, after, before = f"{where}[0]", after[0], before[0]
    return [] if after == before else [invalid_value(where, after, "field is immutable")]


def _check_address(obj: View) -> list[Cause]:
    where, parent = "spec.parentRef", (obj.get("spec") or {}).get("parentRef")
    name = obj["metadata"].get("name", "")
    causes = [] if is_address(name) else [invalid_value("metadata.name", name, IP_WORDS)]
    if parent is None:
        return [*causes, required(where)]
    if parent.get("group"):
        causes += subdomain(f"{where}.group", parent["group"])
    for key in ("resource", "name", "namespace"):
        value, here = parent.get(key), f"{where}.{key}"
        if value:
            causes += path_name(here, value)
        elif key != "namespace":
            causes.append(required(here))
    return causes


def _check_address_update(new: View, old: View) -> list[Cause]:
    after, before = ((each.get("spec") or {}).get("parentRef") for each in (new, old))
    return [] if after == before else [invalid_value("spec.parentRef", after, "field is immutable")]


def _hosts(ingress: View, _: float) -> str:
    hosts = [each["host"] for each in at(ingress, "spec.rules") or () if each.get("host")]
    return "*" if not hosts else more(hosts)


def _ingress_address(ingress: View, _: float) -> str:
    points = at(ingress, "status.loadBalancer.ingress") or ()
    return ",".join(each.get("ip") or each.get("hostname", "") for each in points)


def _ingress_ports(ingress: View, _: float) -> str:
    return "80, 443" if at(ingress, "spec.tls") else "80"


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "networking.k8s.io/ingresses": Kind(
        generation=True,
        defaults=_default_ingress,
        rule=_check_ingress,
        new_rule=_check_new_ingress,
        cells={
            "Class": text("spec.ingressClassName"),
            "Hosts": _hosts,
            "Address": _ingress_address,
            "Ports": _ingress_ports,
        },
    ),
    "networking.k8s.io/ingressclasses": Kind(
        generation=True,
        defaults=_default_ingress_class,
        rule=_check_ingress_class,
        update_rule=_check_ingress_class_update,
        cells={
            "Controller": field("spec.controller"),
            "Parameters": lambda obj, _: (
                f"{at(obj, 'spec.parameters.kind')}.{at(obj, 'spec.parameters.apiGroup') or ''}/"
                f"{at(obj, 'spec.parameters.name')}"
                if at(obj, "spec.parameters")
                else NONE
            ),
        },
    ),
    "networking.k8s.io/networkpolicies": Kind(
        generation=True,
        defaults=_default_network_policy,
        rule=_check_network_policy,
        cells={"Pod-Selector": selector("spec.podSelector")},
    ),
    "networking.k8s.io/servicecidrs": Kind(
        rule=_check_service_ranges,
        update_rule=_check_service_ranges_update,
        cells={
            "CIDRs": lambda obj, _: ",".join(at(obj, "spec.cidrs") or ()),
        },
    ),
    "networking.k8s.io/ipaddresses": Kind(
        rule=_check_address,
        update_rule=_check_address_update,
        cells={
            "ParentRef": lambda obj, _: "/".join(
                str(at(obj, f"spec.parentRef.{key}") or "")
                for key in ("resource", "namespace", "name")
            ),
        },
    ),
}
