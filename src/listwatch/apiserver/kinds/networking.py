"""Ingress, IngressClass, NetworkPolicy, ServiceCIDR and IPAddress."""

import ipaddress
from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import NONE, at, field, more, selector, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.rules import (
    is_address,
    known_values,
    label_selector,
    port_name,
    port_name_or_number,
    port_number,
)
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.selector import subdomain_problems

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
    return causes


def _check_host(where: str, host: str) -> list[Cause]:
    if is_address(host):
        return [invalid_value(where, host, "must be a DNS name, not an IP address")]
    # a wildcard matches one label
    name = host.removeprefix("*.")
    return [invalid_value(where, host, why) for why in subdomain_problems(name)]


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
        return [
            required(f"{here}.resource.{key}") for key in ("kind", "name") if not resource.get(key)
        ]
    if service is None:
        return [invalid_value(here, "", "resource or service backend is required")]
    causes = []
    if not service.get("name"):
        causes.append(required(f"{here}.service.name"))
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


def _check_ingress_class(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = _check_parameters(spec.get("parameters") or {}, "spec.parameters")
    controller = spec.get("controller", "")
    if not controller:
        return [required("spec.controller"), *causes]
    host, _, path = controller.partition("/")
    if not host or not path:
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        return [invalid_value("spec.controller", controller, why), *causes]
    words = subdomain_problems(host)
    return [*(invalid_value("spec.controller", host, why) for why in words), *causes]


def _check_parameters(parameters: View, path: str) -> list[Cause]:
    if not parameters:
        return []
    group = parameters.get("apiGroup")
    words = () if group is None else subdomain_problems(group)
    causes = [invalid_value(f"{path}.apiGroup", group, why) for why in words]
    causes += [
        required(f"{path}.{key}", f"{key} is required")
        for key in ("kind", "name")
        if not parameters.get(key)
    ]
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    told = f"`parameters.scope` is set to '{scope}'"
    if scope not in {"Cluster", "Namespace", None}:
        causes.append(not_supported(f"{path}.scope", scope, ["Cluster", "Namespace"]))
    elif scope == "Namespace" and not namespace:
        causes.append(required(f"{path}.namespace", told))
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


_CIDR_WORDS = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


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
        causes.append(required(f"{path}.port", "must be specified when endPort is specified"))
    elif isinstance(first, str):
        why = "may not be specified when `port` is non-numeric"
        causes.append(invalid_value(where, last, why))
    elif last < first:
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
    if len(peer) > 1:
        return [forbidden_value(path, "may not specify both ipBlock and another peer")]
    cidr = block.get("cidr", "")
    if not cidr:
        return [required(f"{path}.ipBlock.cidr")]
    whole = _network(cidr)
    if whole is None:
        return [invalid_value(f"{path}.ipBlock.cidr", cidr, _CIDR_WORDS)]
    causes = []
    for index, excepted in enumerate(block.get("except") or ()):
        where = f"{path}.ipBlock.except[{index}]"
        part = _network(excepted)
        if part is None:
            causes.append(invalid_value(where, excepted, _CIDR_WORDS))
        elif (
            part.version != whole.version
            or part.prefixlen <= whole.prefixlen
            or part.network_address not in whole
        ):
            causes.append(invalid_value(where, excepted, "must be a strict subset of `cidr`"))
    return causes


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    if "/" not in text:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


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
        cells={
            "CIDRs": lambda obj, _: ",".join(at(obj, "spec.cidrs") or ()),
        }
    ),
    "networking.k8s.io/ipaddresses": Kind(
        cells={
            "ParentRef": lambda obj, _: "/".join(
                str(at(obj, f"spec.parentRef.{key}") or "")
                for key in ("resource", "namespace", "name")
            ),
        }
    ),
}
