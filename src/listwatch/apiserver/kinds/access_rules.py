"""The rules of the kinds that say who may do what: RBAC, network policies, certificates, webhooks.

The sources are the `validation` packages of `pkg/apis`; whatever is not here is not enforced.
"""

import base64
import binascii
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from listwatch.apiserver.kinds.spec_rules import enumeration, port_number
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.selector import subdomain_problems

Object = Mapping[str, Any]
_RBAC = "rbac.authorization.k8s.io"
_CIDR_WORDS = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_PEM_BEGIN = b"-----BEGIN CERTIFICATE REQUEST-----"
_SHORTEST_CERTIFICATE = 600


# -- RBAC ------------------------------------------------------------------------------------


def _policy_rule(rule: Object, path: str, *, namespaced: bool) -> list[Cause]:
    causes = []
    if not rule.get("verbs"):
        causes.append(required(f"{path}.verbs", "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs")
    if urls:
        where = f"{path}.nonResourceURLs"
        if namespaced:
            why = "namespaced rules cannot apply to non-resource URLs"
            causes.append(invalid_value(where, urls, why))
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            causes.append(invalid_value(where, urls, why))
        return causes
    if not rule.get("apiGroups"):
        why = "resource rules must supply at least one api group"
        causes.append(required(f"{path}.apiGroups", why))
    if not rule.get("resources"):
        why = "resource rules must supply at least one resource"
        causes.append(required(f"{path}.resources", why))
    return causes


def _role(obj: Object) -> list[Cause]:
    namespaced = bool(obj["metadata"].get("namespace"))
    causes = [
        cause
        for index, rule in enumerate(obj.get("rules") or ())
        for cause in _policy_rule(rule, f"rules[{index}]", namespaced=namespaced)
    ]
    aggregation = obj.get("aggregationRule")
    if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
        why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        causes.append(required("aggregationRule.clusterRoleSelectors", why))
    return causes


def _role_binding(obj: Object) -> list[Cause]:
    namespaced = bool(obj["metadata"].get("namespace"))
    role = obj.get("roleRef") or {}
    causes = []
    if role.get("apiGroup", _RBAC) != _RBAC:
        causes.append(not_supported("roleRef.apiGroup", role["apiGroup"], [_RBAC]))
    kinds = ["ClusterRole", "Role"] if namespaced else ["ClusterRole"]
    if role.get("kind") not in kinds:
        causes.append(not_supported("roleRef.kind", role.get("kind", ""), kinds))
    if not role.get("name"):
        causes.append(required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or ()):
        causes += _subject(subject, f"subjects[{index}]", namespaced=namespaced)
    return causes


def _subject(subject: Object, path: str, *, namespaced: bool) -> list[Cause]:
    causes = [] if subject.get("name") else [required(f"{path}.name")]
    group, kind = subject.get("apiGroup", ""), subject.get("kind", "")
    if kind == "ServiceAccount":
        if group:
            causes.append(not_supported(f"{path}.apiGroup", group, [""]))
        if not namespaced and not subject.get("namespace"):
            causes.append(required(f"{path}.namespace"))
    elif kind in {"User", "Group"}:
        if group != _RBAC:
            causes.append(not_supported(f"{path}.apiGroup", group, [_RBAC]))
    else:
        kinds = ["ServiceAccount", "User", "Group"]
        causes.append(not_supported(f"{path}.kind", kind, kinds))
    return causes


def _role_binding_update(new: Object, old: Object) -> list[Cause]:
    role = new.get("roleRef") or {}
    if role == (old.get("roleRef") or {}):
        return []
    # the value is shown as the server has it inside, under its own names
    inside = {
        "APIGroup": role.get("apiGroup", ""),
        "Kind": role.get("kind", ""),
        "Name": role.get("name", ""),
    }
    return [invalid_value("roleRef", inside, "cannot change roleRef")]


# -- network policies ------------------------------------------------------------------------


def _network_policy(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction) or ()):
            here = f"spec.{direction}[{index}]"
            for number, port in enumerate(rule.get("ports") or ()):
                causes += _policy_port(port, f"{here}.ports[{number}]")
            for number, peer in enumerate(rule.get(peers) or ()):
                causes += _peer(peer, f"{here}.{peers}[{number}]")
    types = spec.get("policyTypes") or ()
    if len(types) > 2:
        why = "may not specify more than two policyTypes"
        return [*causes, invalid_value("spec.policyTypes", list(types), why)]
    known = ["Ingress", "Egress"]
    return causes + [
        not_supported(f"spec.policyTypes[{index}]", each, known)
        for index, each in enumerate(types)
        if each not in known
    ]


def _policy_port(port: Object, path: str) -> list[Cause]:
    causes = enumeration(port, path, "protocol", ("SCTP", "TCP", "UDP"))
    first, last = port.get("port"), port.get("endPort")
    causes += port_number(f"{path}.port", first)
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


def _peer(peer: Object, path: str) -> list[Cause]:
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
    for index, text in enumerate(block.get("except") or ()):
        where = f"{path}.ipBlock.except[{index}]"
        part = _network(text)
        if part is None:
            causes.append(invalid_value(where, text, _CIDR_WORDS))
        elif (
            part.version != whole.version
            or part.prefixlen <= whole.prefixlen
            or part.network_address not in whole
        ):
            causes.append(invalid_value(where, text, "must be a strict subset of `cidr`"))
    return causes


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    if "/" not in text:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


# -- certificates ----------------------------------------------------------------------------


def _signing_request(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    request = spec.get("request", "")
    try:
        block = base64.b64decode(request)
    except (binascii.Error, ValueError):
        block = b""
    if _PEM_BEGIN not in block:
        why = "PEM block type must be CERTIFICATE REQUEST"
        causes.append(invalid_value("spec.request", request, why))
    if not spec.get("usages"):
        causes.append(required("spec.usages"))
    signer = spec.get("signerName", "")
    host, _, path = signer.partition("/")
    if not signer:
        causes.append(required("spec.signerName"))
    elif not path:
        why = 'must be a fully qualified domain and path of the form "example.com/signer-name"'
        causes.append(invalid_value("spec.signerName", signer, why))
    else:
        causes += [invalid_value("spec.signerName", host, why) for why in subdomain_problems(host)]
    seconds = spec.get("expirationSeconds")
    if isinstance(seconds, int) and seconds < _SHORTEST_CERTIFICATE:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        causes.append(invalid_value("spec.expirationSeconds", seconds, why))
    return causes


# -- webhooks --------------------------------------------------------------------------------


def _webhooks(obj: Object) -> list[Cause]:
    causes: list[Cause] = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        here = f"webhooks[{index}]"
        name = hook.get("name", "")
        if not name:
            causes.append(required(f"{here}.name"))
        else:
            causes += [invalid_value(f"{here}.name", name, why) for why in subdomain_problems(name)]
            if name.count(".") < 2:
                why = "should be a domain with at least three segments separated by dots"
                causes.append(invalid_value(f"{here}.name", name, why))
        if not hook.get("admissionReviewVersions"):
            why = "must specify one of v1, v1beta1"
            causes.append(required(f"{here}.admissionReviewVersions", why))
        effects = hook.get("sideEffects")
        if effects is None:
            why = "must specify one of None, NoneOnDryRun"
            causes.append(required(f"{here}.sideEffects", why))
        else:
            causes += enumeration(hook, here, "sideEffects", ("None", "NoneOnDryRun"))
        causes += enumeration(hook, here, "failurePolicy", ("Fail", "Ignore"))
        causes += enumeration(hook, here, "matchPolicy", ("Equivalent", "Exact"))
        seconds = hook.get("timeoutSeconds")
        if isinstance(seconds, int) and not 1 <= seconds <= 30:
            why = "the timeout value must be between 1 and 30 seconds"
            causes.append(invalid_value(f"{here}.timeoutSeconds", seconds, why))
        client = hook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            why = "exactly one of url or service is required"
            causes.append(required(f"{here}.clientConfig", why))
    return causes


ACCESS_RULES: Mapping[str, Callable[[Object], list[Cause]]] = {
    f"{_RBAC}/roles": _role,
    f"{_RBAC}/clusterroles": _role,
    f"{_RBAC}/rolebindings": _role_binding,
    f"{_RBAC}/clusterrolebindings": _role_binding,
    "networking.k8s.io/networkpolicies": _network_policy,
    "certificates.k8s.io/certificatesigningrequests": _signing_request,
    "admissionregistration.k8s.io/validatingwebhookconfigurations": _webhooks,
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": _webhooks,
}

ACCESS_UPDATE_RULES: Mapping[str, Callable[[Object, Object], list[Cause]]] = {
    f"{_RBAC}/rolebindings": _role_binding_update,
    f"{_RBAC}/clusterrolebindings": _role_binding_update,
}
