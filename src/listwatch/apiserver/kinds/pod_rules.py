"""The rules of a pod's spec and of templates of pods (`pkg/apis/core/validation`)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from listwatch.apiserver.kinds.container_rules import (
    check_containers,
    check_ids,
    check_profile,
    check_resources,
)
from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import (
    address,
    label,
    label_selector,
    not_negative,
    qualified_name,
    selector_term,
    subdomain,
    validate_annotations,
    validate_labels,
)
from listwatch.apiserver.kinds.volume_rules import check_volumes
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from listwatch.selector import LabelSelector, SelectorError, label_value_problems

_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_SYSCTL_WORDS = (
    r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*"
    "[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
)
_SEARCH_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' "
    "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    r"for validation is '[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
)
_SEARCH = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*")
_ALL_TAINTS = (
    'operator must be Exists when `key` is empty, which means "match all values and all keys"'
)
#: In the order of the server's words.
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LONGEST_DEADLINE = (1 << 31) - 1
_NAMESERVERS, _SEARCHES = 3, 32


def check_pod_spec(spec: View, path: str) -> list[Cause]:
    """Return the rules that a pod's spec breaks, under a path such as `spec.template.spec`."""
    causes: list[Cause] = []
    volumes = check_volumes(spec, path, causes)
    causes += check_containers(spec, path, volumes)
    causes += validate_labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    for key in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        if spec.get(key):
            causes += subdomain(f"{path}.{key}", spec[key])
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            causes += label(f"{path}.{key}", spec[key])
    for key, check in _PARTS:
        part = spec.get(key)
        if part:
            causes += check(part, f"{path}.{key}")
    causes += check_resources({"limits": spec.get("overhead") or {}}, f"{path}.overhead")
    causes += not_negative(spec, path, "terminationGracePeriodSeconds")
    seconds = spec.get("activeDeadlineSeconds")
    if isinstance(seconds, int) and not 0 < seconds <= _LONGEST_DEADLINE:
        why = f"must be between 1 and {_LONGEST_DEADLINE}, inclusive"
        causes.append(invalid_value(f"{path}.activeDeadlineSeconds", seconds, why))
    if spec.get("dnsPolicy") == "None":
        config, where = spec.get("dnsConfig"), f"{path}.dnsConfig"
        if config is None:
            why = "must provide `dnsConfig` when `dnsPolicy` is None"
            causes.append(required(where, why))
        elif not config.get("nameservers"):
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            causes.append(required(f"{where}.nameservers", why))
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        causes.append(invalid_value(f"{path}.shareProcessNamespace", True, why))
    return causes


def _check_context(context: View, path: str) -> list[Cause]:
    causes = check_ids(context, path, "fsGroup", "runAsUser", "runAsGroup")
    causes += check_profile(context, path)
    seen: set[str] = set()
    for index, sysctl in enumerate(context.get("sysctls") or ()):
        where, name = f"{path}.sysctls[{index}].name", sysctl.get("name", "")
        if not name:
            causes.append(required(where))
        elif len(name) > 253 or not _SYSCTL.fullmatch(name):
            causes.append(invalid_value(where, name, _SYSCTL_WORDS))
        elif name in seen:
            causes.append(duplicate(where, name))
        seen.add(name)
    return causes


def check_tolerations(tolerations: Iterable[View], path: str) -> list[Cause]:
    """Return the rules that tolerations of taints break."""
    causes: list[Cause] = []
    for index, each in enumerate(tolerations):
        here = f"{path}[{index}]"
        key, operator = each.get("key", ""), each.get("operator", "")
        value, effect = each.get("value", ""), each.get("effect", "")
        if key:
            causes += qualified_name(f"{here}.key", key)
        elif operator != "Exists":
            causes.append(invalid_value(f"{here}.operator", operator, _ALL_TAINTS))
        if each.get("tolerationSeconds") is not None and effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            causes.append(invalid_value(f"{here}.effect", effect, why))
        if operator in {"", "Equal"}:
            causes += [
                invalid_value(f"{here}.operator", value, why) for why in label_value_problems(value)
            ]
        elif operator != "Exists":
            causes.append(not_supported(f"{here}.operator", operator, ("Equal", "Exists")))
        elif value:
            why = "value must be empty when `operator` is 'Exists'"
            causes.append(invalid_value(f"{here}.operator", value, why))
        if effect and effect not in _EFFECTS:
            causes.append(not_supported(f"{here}.effect", effect, _EFFECTS))
    return causes


def check_taints(taints: Iterable[View], path: str) -> list[Cause]:
    """Return the rules that the taints of a node break."""
    causes: list[Cause] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        here = f"{path}[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        causes += qualified_name(f"{here}.key", key)
        value = taint.get("value", "")
        causes += [
            invalid_value(f"{here}.value", value, why) for why in label_value_problems(value)
        ]
        if not effect:
            causes.append(required(f"{here}.effect"))
        elif effect not in _EFFECTS:
            causes.append(not_supported(f"{here}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            causes.append(duplicate(here, taint))
        seen.add((key, effect))
    return causes


def check_node_selector(selector: View, path: str) -> list[Cause]:
    """Return the rules that a selector of nodes breaks."""
    terms = selector.get("nodeSelectorTerms") or ()
    where = f"{path}.nodeSelectorTerms"
    if not terms:
        return [required(where, "must have at least one node selector term")]
    causes: list[Cause] = []
    for index, term in enumerate(terms):
        causes += _check_node_term(term, f"{where}[{index}]")
    return causes


def _check_node_term(term: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, each in enumerate(term.get("matchExpressions") or ()):
        causes += selector_term(each, f"{path}.matchExpressions[{index}]", of_nodes=True)
    for index, each in enumerate(term.get("matchFields") or ()):
        here = f"{path}.matchFields[{index}]"
        if each.get("operator") not in {"In", "NotIn"}:
            why = "not a valid selector operator"
            causes.append(invalid_value(f"{here}.operator", each.get("operator", ""), why))
        elif len(each.get("values") or ()) != 1:
            why = (
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
            causes.append(required(f"{here}.values", why))
        if each.get("key") != "metadata.name":
            why = "not a valid field selector key"
            causes.append(invalid_value(f"{here}.key", each.get("key", ""), why))
    return causes


def _weight(term: View, path: str) -> list[Cause]:
    weight = term.get("weight", 0)
    if 1 <= weight <= 100:
        return []
    return [invalid_value(f"{path}.weight", weight, "must be in the range 1-100")]


_NEEDED = "requiredDuringSchedulingIgnoredDuringExecution"
_WANTED = "preferredDuringSchedulingIgnoredDuringExecution"


def _check_affinity(affinity: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    node = affinity.get("nodeAffinity") or {}
    here = f"{path}.nodeAffinity"
    if node.get(_NEEDED) is not None:
        causes += check_node_selector(node[_NEEDED], f"{here}.{_NEEDED}")
    for index, each in enumerate(node.get(_WANTED) or ()):
        where = f"{here}.{_WANTED}[{index}]"
        causes += _weight(each, where)
        causes += _check_node_term(each.get("preference") or {}, f"{where}.preference")
    for kind in ("podAffinity", "podAntiAffinity"):
        part = affinity.get(kind) or {}
        for index, each in enumerate(part.get(_NEEDED) or ()):
            causes += _check_pod_term(each, f"{path}.{kind}.{_NEEDED}[{index}]")
        for index, each in enumerate(part.get(_WANTED) or ()):
            where = f"{path}.{kind}.{_WANTED}[{index}]"
            causes += _weight(each, where)
            causes += _check_pod_term(each.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")
    return causes


def _topology_key(term: View, path: str) -> list[Cause]:
    key = term.get("topologyKey", "")
    where = f"{path}.topologyKey"
    return qualified_name(where, key) if key else [required(where, "can not be empty")]


def _check_pod_term(term: View, path: str) -> list[Cause]:
    causes = label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    causes += label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces") or ():
        causes += label(f"{path}.namespace", name)
    return causes + _topology_key(term, path)


def _check_dns(config: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    servers, searches = config.get("nameservers") or [], config.get("searches") or []
    if len(servers) > _NAMESERVERS:
        why = f"must not have more than {_NAMESERVERS} nameservers"
        causes.append(invalid_value(f"{path}.nameservers", servers, why))
    for index, server in enumerate(servers):
        causes += address(f"{path}.nameservers[{index}]", server)
    if len(searches) > _SEARCHES:
        why = f"must not have more than {_SEARCHES} search paths"
        causes.append(invalid_value(f"{path}.searches", searches, why))
    for index, search in enumerate(searches):
        where = f"{path}.searches[{index}]"
        bare = search.removesuffix(".") or "a"  # a dot alone is the root
        if not _SEARCH.fullmatch(bare):
            causes.append(invalid_value(where, bare, _SEARCH_WORDS))
    causes += [
        required(f"{path}.options[{index}]", "must not be empty")
        for index, option in enumerate(config.get("options") or ())
        if not option.get("name")
    ]
    return causes


def _check_aliases(aliases: Iterable[View], path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, alias in enumerate(aliases):
        here = f"{path}[{index}]"
        causes += address(f"{here}.ip", alias.get("ip", ""))
        for number, name in enumerate(alias.get("hostnames") or ()):
            causes += subdomain(f"{here}.hostnames[{number}]", name)
    return causes


def _check_gates(gates: Iterable[View], path: str) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name", "")
        causes += qualified_name(f"{path}[{index}]", name)
        if name in seen:
            causes.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
    return causes


def _check_readiness_gates(gates: Iterable[View], path: str) -> list[Cause]:
    return [
        cause
        for index, gate in enumerate(gates)
        for cause in qualified_name(f"{path}[{index}].conditionType", gate.get("conditionType", ""))
    ]


def _check_spread(constraints: Iterable[View], path: str) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[tuple[Any, Any]] = set()
    for index, each in enumerate(constraints):
        here = f"{path}[{index}]"
        for key in ("maxSkew", "minDomains"):
            value = each.get(key, 0 if key == "maxSkew" else 1)
            if value <= 0:
                causes.append(invalid_value(f"{here}.{key}", value, "must be greater than zero"))
        causes += _topology_key(each, here)
        pair = (each.get("topologyKey"), each.get("whenUnsatisfiable"))
        if pair in seen:
            shown = f"{{{pair[0]}, {pair[1]}}}"
            causes.append(duplicate(f"{here}.{{topologyKey, whenUnsatisfiable}}", shown))
        seen.add(pair)
        if each.get("minDomains") is not None and each.get("whenUnsatisfiable") != "DoNotSchedule":
            why = (
                f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not "
                f"{each.get('whenUnsatisfiable', '')}"
            )
            causes.append(invalid_value(f"{here}.minDomains", each["minDomains"], why))
        causes += label_selector(each.get("labelSelector"), f"{here}.labelSelector")
    return causes


def _check_system(system: View, path: str) -> list[Cause]:
    name = system.get("name", "")
    if not name:
        return [required(f"{path}.name")]
    known = ("linux", "windows")
    return [] if name in known else [not_supported(f"{path}.name", name, known)]


_PARTS = (
    ("securityContext", _check_context),
    ("affinity", _check_affinity),
    ("dnsConfig", _check_dns),
    ("readinessGates", _check_readiness_gates),
    ("schedulingGates", _check_gates),
    ("topologySpreadConstraints", _check_spread),
    ("tolerations", check_tolerations),
    ("hostAliases", _check_aliases),
    ("os", _check_system),
)


def check_pod_template(template: View, path: str) -> list[Cause]:
    """Return the rules that a template of pods breaks."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    causes = validate_labels(metadata.get("labels"), f"{path}.labels")
    causes += validate_annotations(metadata.get("annotations"), f"{path}.annotations")
    causes += check_pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        why = "ephemeral containers not allowed in pod template"
        causes.append(forbidden_value(f"{path}.spec.ephemeralContainers", why))
    return causes


def check_lasting_template(template: View, path: str, kind: str) -> list[Cause]:
    """Return the rules that a template breaks whose pods don't end by themselves.

    Args:
        template: the template.
        path: where it stands.
        kind: whose template it is, in the server's words.
    """
    causes = check_pod_template(template, path)
    spec = template.get("spec") or {}
    policy = spec.get("restartPolicy")
    if policy in {"OnFailure", "Never"}:
        causes.append(not_supported(f"{path}.spec.restartPolicy", policy, ["Always"]))
    if spec.get("activeDeadlineSeconds") is not None:
        why = f"activeDeadlineSeconds in {kind} is not Supported"
        causes.append(forbidden_value(f"{path}.spec.activeDeadlineSeconds", why))
    return causes


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str] | None) -> bool | None:
    """Tell whether a selector selects labels; None where it can't be read, and no selector none."""
    if selector is None:
        return False
    try:
        return LabelSelector.from_dict(selector).matches(labels or {})
    except SelectorError:
        return None


def missed(labels: Mapping[str, str] | None, path: str) -> Cause:
    """Return the cause of a template whose labels its selector does not select."""
    why = "`selector` does not match template `labels`"
    return invalid_value(f"{path}.metadata.labels", labels, why)
