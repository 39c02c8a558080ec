"""Roles and their bindings."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import Cell, at
from listwatch.apiserver.kinds.kind import Kind, Object, View
from listwatch.apiserver.kinds.rules import label_selector, path_name, subdomain
from listwatch.schema.causes import Cause, invalid_value, not_supported, required

_RBAC = "rbac.authorization.k8s.io"


def _check_policy_rule(rule: View, path: str, *, namespaced: bool) -> list[Cause]:
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


def _check_role(obj: View) -> list[Cause]:
    namespaced = bool(obj["metadata"].get("namespace"))
    causes = [
        cause
        for index, rule in enumerate(obj.get("rules") or ())
        for cause in _check_policy_rule(rule, f"rules[{index}]", namespaced=namespaced)
    ]
    aggregation = obj.get("aggregationRule")
    if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
        why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        causes.append(required("aggregationRule.clusterRoleSelectors", why))
    for index, each in enumerate((aggregation or {}).get("clusterRoleSelectors") or ()):
        path = f"aggregationRule.clusterRoleSelectors[{index}]"
        broken = label_selector(each, path)
        causes += broken
        if broken:
            causes.append(invalid_value(path, None, "invalid label selector."))
    return causes


def _check_role_binding(obj: View) -> list[Cause]:
    namespaced = bool(obj["metadata"].get("namespace"))
    role = obj.get("roleRef") or {}
    causes = []
    if role.get("apiGroup", _RBAC) != _RBAC:
        causes.append(not_supported("roleRef.apiGroup", role["apiGroup"], [_RBAC]))
    kinds = ["ClusterRole", "Role"] if namespaced else ["ClusterRole"]
    if role.get("kind") not in kinds:
        causes.append(not_supported("roleRef.kind", role.get("kind", ""), kinds))
    name = role.get("name")
    causes += path_name("roleRef.name", name) if name else [required("roleRef.name")]
    for index, subject in enumerate(obj.get("subjects") or ()):
        causes += _check_subject(subject, f"subjects[{index}]", namespaced=namespaced)
    return causes


def _check_subject(subject: View, path: str, *, namespaced: bool) -> list[Cause]:
    causes = [] if subject.get("name") else [required(f"{path}.name")]
    group, kind = subject.get("apiGroup", ""), subject.get("kind", "")
    if kind == "ServiceAccount":
        if subject.get("name"):
            causes += subdomain(f"{path}.name", subject["name"])
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


def _check_role_binding_update(new: View, old: View) -> list[Cause]:
    role = new.get("roleRef") or {}
    if role == (old.get("roleRef") or {}):
        return []
    # a real server shows its internal value, with internal names
    inside = {
        "APIGroup": role.get("apiGroup", ""),
        "Kind": role.get("kind", ""),
        "Name": role.get("name", ""),
    }
    return [invalid_value("roleRef", inside, "cannot change roleRef")]


def _default_role(obj: Object) -> None:
    obj.setdefault("rules", None)


def _default_role_binding(obj: Object) -> None:
    group = "rbac.authorization.k8s.io"
    if "roleRef" in obj:
        obj["roleRef"].setdefault("apiGroup", group)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", group)


def _subjects(kind: str) -> Cell:
    def cell(binding: View, _: float) -> str:
        return ", ".join(
            f"{each['namespace']}/{each['name']}" if each.get("namespace") else each["name"]
            for each in binding.get("subjects") or ()
            if each.get("kind") == kind
        )

    return cell


_BINDING: Mapping[str, Cell] = {
    "Role": lambda binding, _: f"{at(binding, 'roleRef.kind')}/{at(binding, 'roleRef.name')}",
    "Users": _subjects("User"),
    "Groups": _subjects("Group"),
    "ServiceAccounts": _subjects("ServiceAccount"),
}


_ROLE = Kind(
    checks_whole=True,
    name_rule="path",
    create_on_update=True,
    defaults=_default_role,
    rule=_check_role,
)
_ROLE_BINDING = Kind(
    checks_whole=True,
    name_rule="path",
    create_on_update=True,
    defaults=_default_role_binding,
    rule=_check_role_binding,
    update_rule=_check_role_binding_update,
    cells=_BINDING,
)
#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "rbac.authorization.k8s.io/roles": _ROLE,
    "rbac.authorization.k8s.io/clusterroles": _ROLE,
    "rbac.authorization.k8s.io/rolebindings": _ROLE_BINDING,
    "rbac.authorization.k8s.io/clusterrolebindings": _ROLE_BINDING,
}
