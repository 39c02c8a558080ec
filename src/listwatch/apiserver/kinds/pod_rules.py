"""The rules of pod specs and pod templates (`pkg/apis/core/validation`)."""

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
    not_among,
    qualified_name,
    quantity,
    selector_term,
    subdomain,
    validate_annotations,
    validate_labels,
)
from listwatch.apiserver.kinds.system_rules import check_system
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
#: In the server's order.
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LONGEST_DEADLINE = (1 << 31) - 1
_NAMESERVERS, _SEARCHES, _SEARCHES_LENGTH = 3, 32, 2048


def check_pod_spec(spec: View, path: str, metadata: View | None = None) -> list[Cause]:
    """Return the rules that a pod's spec violates.

    Args:
        spec: the spec.
        path: its path, such as `spec.template.spec`.
        metadata: the pod's; None for a template.
    """
    causes: list[Cause] = []
    pod = "" if metadata is None else metadata.get("name", "")
    volumes = check_volumes(spec, path, causes, pod=pod)
    causes += check_resource_claims(spec.get("resourceClaims") or (), f"{path}.resourceClaims")
    causes += check_containers(spec, path, volumes, is_pod=metadata is not None)
    if spec.get("resources"):
        causes += _check_pod_resources(spec, f"{path}.resources")
    causes += validate_labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    context = spec.get("securityContext")
    if context:
        causes += _check_context(context, f"{path}.securityContext")
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        where = f"{path}.securityContext.shareProcessNamespace"
        causes.append(invalid_value(where, True, why))
    causes += _check_dns_config(spec, f"{path}.dnsConfig")
    for key, check in _PARTS:
        part = spec.get(key)
        if part:
            causes += check(part, f"{path}.{key}")
    causes += _check_users(spec, path)
    for key in ("serviceAccountName", "nodeName", "priorityClassName"):
        if spec.get(key):
            causes += subdomain(f"{path}.{key}", spec[key])
    if spec.get("runtimeClassName") is not None:
        causes += subdomain(f"{path}.runtimeClassName", spec["runtimeClassName"])
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            causes += label(f"{path}.{key}", spec[key])
    seconds = spec.get("activeDeadlineSeconds")
    if isinstance(seconds, int) and not 0 < seconds <= _LONGEST_DEADLINE:
        why = f"must be between 1 and {_LONGEST_DEADLINE}, inclusive"
        causes.append(invalid_value(f"{path}.activeDeadlineSeconds", seconds, why))
    if spec.get("overhead"):
        causes += check_resources({"limits": spec["overhead"]}, f"{path}.overhead")
    return causes + check_system(spec, path)


def check_resource_claims(claims: Iterable[View], path: str) -> list[Cause]:
    """Return the rules that a pod's resource claims violate."""
    causes: list[Cause] = []
    names: set[str] = set()
    for index, claim in enumerate(claims):
        here, name = f"{path}[{index}]", claim.get("name", "")
        if not name:
            causes.append(required(f"{here}.name"))
        elif name in names:
            causes.append(duplicate(f"{here}.name", name))
        else:
            causes += label(f"{here}.name", name)
        names.add(name)
        given = [key for key in _CLAIM_NAMES if claim.get(key) is not None]
        if len(given) > 1:
            why = (
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            )
            causes.append(invalid_value(here, claim, why))
        elif not given:
            why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            causes.append(invalid_value(here, claim, why))
        for key in given:
            causes += subdomain(f"{here}.{key}", claim[key])
    return causes


_CLAIM_NAMES = ("resourceClaimName", "resourceClaimTemplateName")


def _check_pod_resources(spec: View, path: str) -> list[Cause]:
    resources = spec["resources"]
    causes = check_resources(resources, path, of_pod=True)
    if "claims" in resources:
        why = "claims cannot be set for Resources at pod-level"
        causes.append(forbidden_value(f"{path}.claims", why))
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    sums: dict[str, float] = {}
    for index, container in enumerate(spec.get("containers") or ()):
        own = container.get("resources") or {}
        for name, amount in (own.get("requests") or {}).items():
            sums[name] = sums.get(name, 0) + quantity(amount)
        for name, amount in (own.get("limits") or {}).items():
            if name in limits and quantity(amount) > quantity(limits[name]):
                why = f"must be less than or equal to pod limits of {limits[name]}"
                where = f"{path}.containers[{index}][{name}].limits"
                causes.append(invalid_value(where, amount, why))
    for name, total in sums.items():
        if total > quantity(requests.get(name, "0")):
            why = "must be greater than or equal to aggregate container requests"
            where = f"{path}.requests[{name}]"
            causes.append(invalid_value(where, requests.get(name, "0"), why))
    return causes


def _check_users(spec: View, path: str) -> list[Cause]:
    if spec.get("hostUsers") is not False:
        return []
    return [
        forbidden_value(f"{path}.{shown}", "when `hostUsers` is false")
        for key, shown in (
            ("hostNetwork", "hostNetwork"),
            ("hostPID", "HostPID"),
            ("hostIPC", "HostIPC"),
        )
        if spec.get(key)
    ]


def _check_context(context: View, path: str) -> list[Cause]:
    causes = check_ids(context, path, "fsGroup", "runAsUser", "runAsGroup")
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
    causes += check_profile(context, path)
    return causes + not_among(context, path, "seLinuxChangePolicy", ("MountOption", "Recursive"))


def check_tolerations(tolerations: Iterable[View], path: str) -> list[Cause]:
    """Return the rules that tolerations violate."""
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
    """Return the rules that the taints of a node violate."""
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
    """Return the rules that a node selector violates."""
    terms = selector.get("nodeSelectorTerms") or ()
    where = f"{path}.nodeSelectorTerms"
    if not terms:
        return [required(where, "must have at least one node selector term")]
    causes: list[Cause] = []
    for index, term in enumerate(terms):
        causes += _check_node_term(term, f"{where}[{index}]")
    return causes


def _check_node_term(term: View, path: str, *, wanted: bool = False) -> list[Cause]:
    causes: list[Cause] = []
    for index, each in enumerate(term.get("matchExpressions") or ()):
        here = f"{path}.matchExpressions[{index}]"
        found = selector_term(each, here, of_nodes=True)
        # a preferred term may have values that no label can have
        causes += [
            cause for cause in found if not wanted or not cause.field.startswith(f"{here}.values[")
        ]
    for index, each in enumerate(term.get("matchFields") or ()):
        here = f"{path}.matchFields[{index}]"
        values = each.get("values") or ()
        if each.get("operator") not in {"In", "NotIn"}:
            why = "not a valid selector operator"
            causes.append(invalid_value(f"{here}.operator", each.get("operator", ""), why))
        elif len(values) != 1:
            why = (
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
            causes.append(required(f"{here}.values", why))
        if each.get("key") != "metadata.name":
            why = "not a valid field selector key"
            causes.append(invalid_value(f"{here}.key", each.get("key", ""), why))
        else:
            for number, value in enumerate(values):
                causes += subdomain(f"{here}.values[{number}]", value)
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
        preference = each.get("preference") or {}
        causes += _check_node_term(preference, f"{where}.preference", wanted=True)
    for kind in ("podAffinity", "podAntiAffinity"):
        part = affinity.get(kind) or {}
        for index, each in enumerate(part.get(_NEEDED) or ()):
            causes += _check_pod_term(each, f"{path}.{kind}.{_NEEDED}[{index}]")
        for index, each in enumerate(part.get(_WANTED) or ()):
            where = f"{path}.{kind}.{_WANTED}[{index}]"
            causes += _weight(each, where)
            causes += _check_pod_term(each.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")
    return causes


def _check_pod_term(term: View, path: str) -> list[Cause]:
    causes = label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    causes += label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces") or ():
        causes += label(f"{path}.namespace", name)
    causes += _check_label_keys(term, path)
    key, where = term.get("topologyKey", ""), f"{path}.topologyKey"
    if not key:
        causes.append(required(where, "can not be empty"))
    return causes + qualified_name(where, key)


def _check_label_keys(term: View, path: str) -> list[Cause]:
    """Return why the label keys of an affinity term are refused."""
    selector, causes = term.get("labelSelector"), list[Cause]()
    for group in ("matchLabelKeys", "mismatchLabelKeys"):
        keys, where = term.get(group) or (), f"{path}.{group}"
        if keys and selector is None:
            why = "must not be specified when labelSelector is not set"
            causes.append(forbidden_value(where, why))
            continue
        for index, key in enumerate(keys):
            causes += qualified_name(f"{where}[{index}]", key)
    others = term.get("mismatchLabelKeys") or ()
    return causes + [
        invalid_value(
            f"{path}.matchLabelKeys[{index}]",
            key,
            "exists in both matchLabelKeys and mismatchLabelKeys",
        )
        for index, key in enumerate(term.get("matchLabelKeys") or ())
        if key in others
    ]


def _check_dns_config(spec: View, path: str) -> list[Cause]:
    config = spec.get("dnsConfig")
    if spec.get("dnsPolicy") == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.get("nameservers"):
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.nameservers", why)]
    return _check_dns(config or {}, path)


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
    if len(" ".join(searches).encode()) > _SEARCHES_LENGTH:
        why = f"must not have more than {_SEARCHES_LENGTH} characters (including spaces)"
        causes.append(invalid_value(f"{path}.searches", searches, why))
    for index, search in enumerate(searches):
        where = f"{path}.searches[{index}]"
        bare = "a" if search == "." else search.removesuffix(".")  # a single dot is the DNS root
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
    constraints = list(constraints)
    pairs = [
        (each.get("topologyKey", ""), each.get("whenUnsatisfiable", "")) for each in constraints
    ]
    for index, each in enumerate(constraints):
        here, (key, otherwise) = f"{path}[{index}]", pairs[index]
        for name in ("maxSkew", "minDomains"):
            value = each.get(name, 0 if name == "maxSkew" else 1)
            if value <= 0:
                causes.append(invalid_value(f"{here}.{name}", value, "must be greater than zero"))
        if not key:
            causes.append(required(f"{here}.topologyKey", "can not be empty"))
        if not otherwise:
            known = ("DoNotSchedule", "ScheduleAnyway")
            causes.append(not_supported(f"{here}.whenUnsatisfiable", "", known))
        if pairs[index] in pairs[index + 1 :]:
            where = f"{here}.{{topologyKey, whenUnsatisfiable}}"
            causes.append(duplicate(where, f"{{{key}, {otherwise}}}"))
        if each.get("minDomains") is not None and otherwise != "DoNotSchedule":
            why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {otherwise}"
            causes.append(invalid_value(f"{here}.minDomains", each["minDomains"], why))
        causes += _check_spread_keys(each, here)
        causes += label_selector(each.get("labelSelector"), f"{here}.labelSelector")
    return causes


def _check_spread_keys(constraint: View, path: str) -> list[Cause]:
    keys, selector = constraint.get("matchLabelKeys") or (), constraint.get("labelSelector")
    where, causes = f"{path}.matchLabelKeys", list[Cause]()
    if keys and selector is None:
        why = "must not be specified when labelSelector is not set"
        causes.append(forbidden_value(where, why))
    terms = (selector or {}).get("matchExpressions") or ()
    chosen = {*((selector or {}).get("matchLabels") or ()), *(each.get("key") for each in terms)}
    for index, key in enumerate(keys):
        causes += qualified_name(f"{where}[{index}]", key)
        if key in chosen:
            why = "exists in both matchLabelKeys and labelSelector"
            causes.append(invalid_value(f"{where}[{index}]", key, why))
    return causes


_PARTS = (
    ("affinity", _check_affinity),
    ("readinessGates", _check_readiness_gates),
    ("schedulingGates", _check_gates),
    ("topologySpreadConstraints", _check_spread),
    ("tolerations", check_tolerations),
    ("hostAliases", _check_aliases),
)


def check_pod_template(template: View, path: str) -> list[Cause]:
    """Return the rules that a pod template violates."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    causes = validate_labels(metadata.get("labels"), f"{path}.labels")
    causes += validate_annotations(metadata.get("annotations"), f"{path}.annotations")
    causes += check_pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        why = "ephemeral containers not allowed in pod template"
        causes.append(forbidden_value(f"{path}.spec.ephemeralContainers", why))
    return causes


def check_lasting_template(template: View, path: str, kind: str) -> list[Cause]:
    """Return the rules that a template of pods without an end violates.

    Args:
        template: the template.
        path: its path.
        kind: the owner's kind, in the server's words.
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
    """Return whether a selector matches labels; None if it is invalid. No selector matches none."""
    if selector is None:
        return False
    try:
        return LabelSelector.from_dict(selector).matches(labels or {})
    except SelectorError:
        return None


def missed(labels: Mapping[str, str] | None, path: str) -> Cause:
    """Return the cause for a template whose labels its selector does not match."""
    why = "`selector` does not match template `labels`"
    return invalid_value(f"{path}.metadata.labels", labels, why)
