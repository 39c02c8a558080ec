"""Pod templates, shared by workloads, jobs and pods themselves."""

import math

from listwatch.apiserver.kinds.cells import NONE, Cell, at, join, selector
from listwatch.apiserver.kinds.kind import Object
from listwatch.apiserver.kinds.rules import quantity
from listwatch.schema.typed import canonical_quantity


def default_pod_spec(spec: Object) -> None:
    """Set the defaults of a pod's spec."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    host = spec.get("hostNetwork") is True
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            _default_container(container, host_network=host)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def _default_container(container: Object, *, host_network: bool) -> None:
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and port.get("containerPort") and not port.get("hostPort"):
            port["hostPort"] = port["containerPort"]
    _default_resources(container.setdefault("resources", {}))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        image = container.get("image", "")
        last = image.rpartition("/")[2]
        tag = last.partition("@")[0].partition(":")[2]
        fixed = "@" in last or (tag and tag != "latest")
        container["imagePullPolicy"] = "IfNotPresent" if fixed else "Always"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe is not None:
            _default_probe(probe)
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict) and "httpGet" in handler:
            _default_http_get(handler["httpGet"])
    for variable in container.get("env") or ():
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if field is not None:
            field.setdefault("apiVersion", "v1")
        resource = (variable.get("valueFrom") or {}).get("resourceFieldRef")
        if resource is not None:
            resource.setdefault("divisor", "0")


def _default_resources(resources: Object) -> None:
    for amounts in resources.values():
        if isinstance(amounts, dict):
            _round_up(amounts)


def _round_up(amounts: Object) -> None:
    """Round amounts up to thousandths, the server's precision."""
    for name, amount in amounts.items():
        if amount[-1:] in {"n", "u"}:
            amounts[name] = canonical_quantity(f"{math.ceil(quantity(amount) * 1000)}m")


def _default_probe(probe: Object) -> None:
    for key, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(key):
            probe[key] = value
    if "httpGet" in probe:
        _default_http_get(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http_get(action: Object) -> None:
    if not action.get("path"):
        action["path"] = "/"
    if not action.get("scheme"):
        action["scheme"] = "HTTP"


_WITH_MODES = ("secret", "configMap", "downwardAPI", "projected")


def _default_volume(volume: Object) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for name in _WITH_MODES:
        source = volume.get(name)
        if source is None:
            continue
        source.setdefault("defaultMode", 420)
        for part in source.get("sources") or ():
            token = part.get("serviceAccountToken")
            if token is not None:
                token.setdefault("expirationSeconds", 3600)
        items = list(source.get("items") or ())
        for part in source.get("sources") or ():
            items += (part.get("downwardAPI") or {}).get("items") or ()
        for item in items:
            if "fieldRef" in item:
                item["fieldRef"].setdefault("apiVersion", "v1")
            if "resourceFieldRef" in item:
                item["resourceFieldRef"].setdefault("divisor", "0")
    host_path = volume.get("hostPath")
    if host_path is not None:
        host_path.setdefault("type", "")
    iscsi = volume.get("iscsi")
    if iscsi is not None:
        iscsi.setdefault("iscsiInterface", "default")
    rbd = volume.get("rbd")
    if rbd is not None:
        rbd.setdefault("pool", "rbd")
        rbd.setdefault("user", "admin")
        rbd.setdefault("keyring", "/etc/ceph/keyring")


def default_template(spec: Object) -> None:
    """Set the defaults of the template in a workload's spec."""
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def containers_cell(path: str, key: str) -> Cell:
    """Return a cell function that lists a key's values of the containers in a pod spec."""
    return lambda obj, _: join(
        (each.get(key, "") for each in at(obj, f"{path}.containers") or ()),
    ).replace(NONE, "")


def workload_cells(spec: str = "spec.template.spec") -> dict[str, Cell]:
    """Return the cells that workloads share; their pod spec is at a path."""
    return {
        "Containers": containers_cell(spec, "name"),
        "Images": containers_cell(spec, "image"),
        "Selector": selector("spec.selector"),
    }
