"""The initial roles and bindings of a cluster.

Names and rules are those of `plugin/pkg/auth/authorizer/rbac/bootstrappolicy`. The roles of the
controllers themselves are missing: only kube-controller-manager uses them.
"""

from collections.abc import Sequence
from typing import Any

from listwatch.apiserver.access.auth import AUTHENTICATED, MASTERS, RBAC, UNAUTHENTICATED

Object = dict[str, Any]
#: The plural name of a resource of RBAC, and an object of it.
Made = tuple[str, Object]

_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_ANNOTATIONS = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
_SYSTEM = "kube-system"


def _rule(verbs: str, group: str, resources: str, names: str = "") -> Object:
    """Return a rule for the resources of a group; the arguments are space-separated."""
    rule: Object = {
        "verbs": verbs.split(),
        "apiGroups": [group],
        "resources": resources.split(),
    }
    if names:
        rule["resourceNames"] = names.split()
    return rule


def _paths(paths: str) -> Object:
    return {"verbs": ["get"], "nonResourceURLs": paths.split()}


def _metadata(name: str, namespace: str = "") -> Object:
    metadata: Object = {"name": name, "labels": _LABELS, "annotations": _ANNOTATIONS}
    return {**metadata, "namespace": namespace} if namespace else metadata


def _role(name: str, *rules: Object, namespace: str = "") -> Made:
    plural = "roles" if namespace else "clusterroles"
    return plural, {"metadata": _metadata(name, namespace), "rules": list(rules)}


def _subject(text: str) -> Object:
    """Return a subject such as `Group system:masters` or `ServiceAccount kube-system/kube-dns`."""
    kind, _, name = text.partition(" ")
    if kind == "ServiceAccount":
        namespace, _, name = name.partition("/")
        return {"kind": kind, "name": name, "namespace": namespace}
    return {"kind": kind, "apiGroup": RBAC, "name": name}


def _binding(role: str, *subjects: str, name: str = "", namespace: str = "") -> Made:
    plural = "rolebindings" if namespace else "clusterrolebindings"
    return plural, {
        "metadata": _metadata(name or role, namespace),
        "roleRef": {
            "apiGroup": RBAC,
            "kind": "Role" if namespace else "ClusterRole",
            "name": role,
        },
        "subjects": [_subject(each) for each in subjects],
    }


_READ = "get list watch"
_EDIT = "create delete deletecollection get list patch update watch"
_CORE = (
    "configmaps endpoints events persistentvolumeclaims pods pods/log pods/status "
    "replicationcontrollers replicationcontrollers/scale serviceaccounts services"
)
_GROUPS = ["apps", "batch", "autoscaling", "policy", "networking.k8s.io", "discovery.k8s.io"]


def _workloads(verbs: str) -> list[Object]:
    return [
        _rule(verbs, "", _CORE),
        {"verbs": verbs.split(), "apiGroups": _GROUPS, "resources": ["*"]},
    ]


_EVENTS = (
    _rule("create patch update", "", "events"),
    _rule("create patch update", "events.k8s.io", "events"),
)
_CERTIFICATES = "certificates.k8s.io"
_SIGNING = "certificatesigningrequests"
_REQUESTS = f"system:certificates.k8s.io:{_SIGNING}:"
_SIGNERS = "system:certificates.k8s.io:"


def _approver(role: str, signer: str) -> Made:
    return _role(
        f"{_SIGNERS}{role}", _rule("approve", _CERTIFICATES, "signers", f"kubernetes.io/{signer}")
    )


def _lock(component: str) -> tuple[Made, Made]:
    name = f"system::leader-locking-{component}"
    return (
        _role(
            name,
            _rule("watch", "", "configmaps"),
            _rule("get update", "", "configmaps", component),
            namespace=_SYSTEM,
        ),
        _binding(
            name,
            f"User system:{component}",
            f"ServiceAccount {_SYSTEM}/{component.removeprefix('kube-')}",
            namespace=_SYSTEM,
        ),
    )


_HEALTH = "/healthz /livez /readyz /version /version/"
_API = "/api /api/* /apis /apis/* /openapi /openapi/*"
_READER = "extension-apiserver-authentication-reader"
_ISSUER = "system:service-account-issuer-discovery"

#: All roles, in order of creation.
ROLES: Sequence[Made] = (
    (
        "clusterroles",
        {
            "metadata": _metadata("cluster-admin"),
            "rules": [
                _rule("*", "*", "*"),
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ],
        },
    ),
    _binding("cluster-admin", f"Group {MASTERS}"),
    _role("view", *_workloads(_READ)),
    _role("edit", *_workloads(_EDIT), _rule(_EDIT, "", "secrets")),
    _role(
        "admin",
        *_workloads(_EDIT),
        _rule(_EDIT, "", "secrets"),
        _rule(_EDIT, RBAC, "roles rolebindings"),
    ),
    # for everybody
    _role("system:discovery", _paths(f"{_API} {_HEALTH}")),
    _binding("system:discovery", f"Group {AUTHENTICATED}"),
    _role(
        "system:basic-user",
        _rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        _rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    ),
    _binding("system:basic-user", f"Group {AUTHENTICATED}"),
    _role("system:public-info-viewer", _paths(_HEALTH)),
    _binding("system:public-info-viewer", f"Group {AUTHENTICATED}", f"Group {UNAUTHENTICATED}"),
    # for administrators to bind
    _role(
        "system:auth-delegator",
        _rule("create", "authentication.k8s.io", "tokenreviews"),
        _rule("create", "authorization.k8s.io", "subjectaccessreviews"),
    ),
    _role("system:kube-aggregator", _rule(_READ, "", "services endpoints")),
    _role(
        "system:heapster",
        _rule(_READ, "", "events pods nodes namespaces"),
        _rule(_READ, "extensions", "deployments"),
    ),
    _role(
        "system:kubelet-api-admin",
        _rule(_READ, "", "nodes"),
        _rule("proxy", "", "nodes"),
        _rule("*", "", "nodes/log nodes/metrics nodes/proxy nodes/stats"),
    ),
    _role("system:node-bootstrapper", _rule(f"create {_READ}", _CERTIFICATES, _SIGNING)),
    _role(
        "system:node-problem-detector",
        _rule("get", "", "nodes"),
        _rule("patch", "", "nodes/status"),
        *_EVENTS,
    ),
    _role(
        "system:persistent-volume-provisioner",
        _rule("create delete get list watch", "", "persistentvolumes"),
        _rule("get list update watch", "", "persistentvolumeclaims"),
        _rule(_READ, "storage.k8s.io", "storageclasses"),
        _rule("watch", "", "events"),
        *_EVENTS,
    ),
    _role(f"{_REQUESTS}nodeclient", _rule("create", _CERTIFICATES, f"{_SIGNING}/nodeclient")),
    _role(
        f"{_REQUESTS}selfnodeclient",
        _rule("create", _CERTIFICATES, f"{_SIGNING}/selfnodeclient"),
    ),
    _approver("kube-apiserver-client-approver", "kube-apiserver-client"),
    _approver("kube-apiserver-client-kubelet-approver", "kube-apiserver-client-kubelet"),
    _approver("kubelet-serving-approver", "kubelet-serving"),
    _approver("legacy-unknown-approver", "legacy-unknown"),
    _role(
        _ISSUER,
        _paths(
            "/.well-known/openid-configuration /.well-known/openid-configuration/ "
            "/openid/v1/jwks /openid/v1/jwks/"
        ),
    ),
    _binding(_ISSUER, "Group system:serviceaccounts"),
    _role(
        "system:monitoring",
        _paths("/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*"),
    ),
    _binding("system:monitoring", "Group system:monitoring"),
    # for the components of a cluster
    _role(
        "system:node-proxier",
        _rule("list watch", "", "endpoints services"),
        _rule(_READ, "", "nodes"),
        *_EVENTS,
        _rule("list watch", "discovery.k8s.io", "endpointslices"),
        _rule("list watch", "networking.k8s.io", "servicecidrs"),
    ),
    _binding("system:node-proxier", "User system:kube-proxy"),
    _role("system:kube-dns", _rule("list watch", "", "endpoints services")),
    _binding("system:kube-dns", f"ServiceAccount {_SYSTEM}/kube-dns"),
    _role(
        "system:volume-scheduler",
        _rule("get list patch update watch", "", "persistentvolumes"),
        _rule(_READ, "storage.k8s.io", "storageclasses"),
        _rule("get list patch update watch", "", "persistentvolumeclaims"),
    ),
    _binding("system:volume-scheduler", "User system:kube-scheduler"),
    _role(
        "system:kube-scheduler",
        *_EVENTS,
        _rule("create", "coordination.k8s.io", "leases"),
        _rule("get update", "coordination.k8s.io", "leases", "kube-scheduler"),
        _rule(_READ, "", "nodes"),
        _rule("delete get list watch", "", "pods"),
        _rule("create", "", "bindings pods/binding"),
        _rule("patch update", "", "pods/status"),
        _rule(_READ, "", "replicationcontrollers services"),
        _rule(_READ, "apps", "replicasets statefulsets"),
        _rule(_READ, "policy", "poddisruptionbudgets"),
        _rule(_READ, "", "persistentvolumeclaims persistentvolumes"),
        _rule("create", "authentication.k8s.io", "tokenreviews"),
        _rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        _rule(_READ, "storage.k8s.io", "csinodes csidrivers csistoragecapacities"),
        _rule(_READ, "", "namespaces"),
    ),
    _binding("system:kube-scheduler", "User system:kube-scheduler"),
    _role(
        "system:kube-controller-manager",
        *_EVENTS,
        _rule("create", "coordination.k8s.io", "leases"),
        _rule("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
        _rule("create", "", "secrets serviceaccounts"),
        _rule("delete", "", "secrets"),
        _rule("get", "", "namespaces secrets serviceaccounts configmaps"),
        _rule("update", "", "secrets serviceaccounts"),
        _rule("create", "authentication.k8s.io", "tokenreviews"),
        _rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        _rule("list watch", "*", "*"),
        _rule("create", "", "serviceaccounts/token"),
    ),
    _binding("system:kube-controller-manager", "User system:kube-controller-manager"),
    _role(
        "system:node",
        _rule("create", "authentication.k8s.io", "tokenreviews"),
        _rule("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
        _rule(_READ, "", "services"),
        _rule(f"create {_READ}", "", "nodes"),
        _rule("patch update", "", "nodes/status"),
        _rule("patch update", "", "nodes"),
        *_EVENTS,
        _rule(_READ, "", "pods"),
        _rule("create delete", "", "pods"),
        _rule("patch update", "", "pods/status"),
        _rule("create", "", "pods/eviction"),
        _rule(_READ, "", "configmaps secrets"),
        _rule("get", "", "persistentvolumeclaims persistentvolumes"),
        _rule("get", "", "endpoints"),
        _rule(f"create {_READ}", _CERTIFICATES, _SIGNING),
        _rule("create delete get patch update", "coordination.k8s.io", "leases"),
        _rule("get", "storage.k8s.io", "volumeattachments"),
        _rule("create", "", "serviceaccounts/token"),
        _rule("get patch update", "", "persistentvolumeclaims/status"),
        _rule(_READ, "storage.k8s.io", "csidrivers"),
        _rule("create delete get patch update", "storage.k8s.io", "csinodes"),
        _rule(_READ, "node.k8s.io", "runtimeclasses"),
    ),
    _binding("system:node"),
    _role(
        _READER,
        _rule(_READ, "", "configmaps", "extension-apiserver-authentication"),
        namespace=_SYSTEM,
    ),
    _binding(
        _READER,
        "User system:kube-controller-manager",
        "User system:kube-scheduler",
        name=f"system::{_READER}",
        namespace=_SYSTEM,
    ),
    *_lock("kube-controller-manager"),
    *_lock("kube-scheduler"),
)
