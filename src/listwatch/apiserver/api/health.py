"""The health checks: /healthz, /livez and /readyz.

The names are a real server's, because programs request single checks. Here all checks pass as soon
as the server responds.
"""

from aiohttp.web_response import Response

from listwatch.apiserver.http.call import Call, text_answer
from listwatch.schema.causes import go_quoted

PATHS = ("/healthz", "/livez", "/readyz")
_HOOKS = (
    "start-apiserver-admission-initializer",
    "generic-apiserver-start-informers",
    "priority-and-fairness-config-consumer",
    "priority-and-fairness-filter",
    "storage-object-count-tracker-hook",
    "start-apiextensions-informers",
    "start-apiextensions-controllers",
    "crd-informer-synced",
    "start-system-namespaces-controller",
    "peer-endpoint-reconciler-controller",
    "start-cluster-authentication-info-controller",
    "start-kube-apiserver-identity-lease-controller",
    "start-kube-apiserver-identity-lease-garbage-collector",
    "storage-readiness",
    "start-legacy-token-tracking-controller",
    "start-service-ip-repair-controllers",
    "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "start-kubernetes-service-cidr-controller",
    "aggregator-reload-proxy-client-cert",
    "start-kube-aggregator-informers",
    "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller",
    "apiservice-registration-controller",
    "apiservice-wait-for-first-sync",
    "apiservice-discovery-controller",
    "kube-apiserver-autoregistration",
)
_CHECKS = (
    "ping",
    "log",
    "loopback-serving-certificate",
    "etcd",
    *(f"poststarthook/{name}" for name in _HOOKS),
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
)
#: Checks that only /readyz has.
_READY = ("etcd-readiness", "informer-sync", "shutdown")


def answer_health(call: Call, path: str) -> Response:
    """Answer a request for all checks, or for one."""
    root, _, check = path[1:].partition("/")
    checks = (*_CHECKS, *_READY) if root == "readyz" else _CHECKS
    if f"/{root}" not in PATHS or (check and check not in checks):
        return text_answer("404 page not found\n", 404)
    if check or "verbose" not in call.query:
        return text_answer("ok")
    excluded = call.query.get("exclude") or []
    lines = [f"[+]{name} {'excluded: ' if name in excluded else ''}ok" for name in checks]
    unknown = [name for name in excluded if name not in checks]
    if unknown:
        names = ", ".join(map(go_quoted, unknown))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    return text_answer("\n".join([*lines, f"{root} check passed", ""]))
