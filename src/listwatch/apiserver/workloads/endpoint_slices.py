"""EndpointSlices and Endpoints: the pods behind a Service."""

import itertools
from collections.abc import Iterator

from listwatch.apiserver.workloads.observed import (
    ENDPOINTS,
    NODES,
    PODS,
    SLICES,
    Create,
    Delete,
    Object,
    Observed,
    Steps,
    Update,
    View,
    owner_reference,
    with_metadata,
)
from listwatch.apiserver.workloads.pods import is_deleting, is_finished, is_ready

#: Maximum endpoints of a slice.
_SLICE = 100
#: Maximum addresses of an Endpoints object.
_MOST = 1000
_SERVICE = "kubernetes.io/service-name"
_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_MANAGER = "endpointslice-controller.k8s.io"
_HEADLESS = "service.kubernetes.io/headless"
_ZONE = "topology.kubernetes.io/zone"
#: Name, number, protocol and application protocol of each port.
_Ports = tuple[tuple[str, int, str, str], ...]
_OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"


def selects_pod(service: View, labels: View) -> bool:
    """Return whether a Service selects pods with such labels."""
    selector = service["spec"].get("selector")
    return bool(selector) and selector.items() <= labels.items()


def step_service(observed: Observed, service: View) -> Steps:
    """Bring the EndpointSlices and the Endpoints of a Service up to date."""
    spec = service["spec"]
    if not spec.get("selector") or spec.get("type") == "ExternalName" or is_deleting(service):
        return []
    pods = [
        pod
        for pod in observed.objects(PODS, service["metadata"]["namespace"])
        if selects_pod(service, pod["metadata"].get("labels") or {})
        and not is_finished(pod)
        and (pod.get("status") or {}).get("podIP")
    ]
    return [*_slices(observed, service, pods), *_endpoints(observed, service, pods)]


def without_service(observed: Observed, namespace: str, name: str) -> Steps:
    """Delete the Endpoints of a deleted Service; its slices go with their owner."""
    found = observed.find(ENDPOINTS, namespace, name)
    return [] if found is None or is_deleting(found) else [Delete(ENDPOINTS, found)]


def _ports(service: View, pod: View | None) -> _Ports:
    """Return the ports of a Service resolved for a pod; a named port that it lacks is omitted."""
    found = []
    for port in service["spec"].get("ports") or ():
        number = _number(port, pod)
        if number:
            protocol = port.get("protocol", "TCP")
            found.append((port.get("name", ""), number, protocol, port.get("appProtocol", "")))
    return tuple(found)


def _number(port: View, pod: View | None) -> int:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target or int(port["port"])
    for container in pod["spec"].get("containers") or () if pod is not None else ():
        for each in container.get("ports") or ():
            same = each.get("protocol", "TCP") == port.get("protocol", "TCP")
            if each.get("name") == target and same:
                return int(each["containerPort"])
    return 0


def _labels(service: View) -> dict[str, str]:
    labels = dict(service["metadata"].get("labels") or {})
    if service["spec"].get("clusterIP") == "None":
        labels[_HEADLESS] = ""
    return labels


def _reference(pod: View) -> Object:
    metadata = pod["metadata"]
    return {
        "kind": "Pod",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _hostname(service: View, pod: View) -> str:
    spec = pod["spec"]
    if spec.get("subdomain") == service["metadata"]["name"]:
        return str(spec.get("hostname", ""))
    return ""


# -- slices ---------------------------------------------------------------------------------------


def _slices(observed: Observed, service: View, pods: list[View]) -> Steps:
    groups: dict[_Ports, list[Object]] = {}
    for pod in pods:
        endpoint = _endpoint(observed, service, pod)
        groups.setdefault(_ports(service, pod), []).append(endpoint)
    # a Service without endpoints has one empty slice
    wanted: dict[_Ports, list[list[Object]]] = {
        ports: list(_chunks(endpoints, _SLICE)) for ports, endpoints in groups.items()
    } or {(): [[]]}
    present: dict[_Ports, list[View]] = {}
    for each in observed.controlled(service, SLICES):
        if (each["metadata"].get("labels") or {}).get(_MANAGED_BY) == _MANAGER:
            present.setdefault(_ports_of(each), []).append(each)
    labels = {
        **_labels(service),
        _SERVICE: service["metadata"]["name"],
        _MANAGED_BY: _MANAGER,
    }
    steps: Steps = []
    for ports, chunks in wanted.items():
        known = present.pop(ports, [])
        for chunk, old in itertools.zip_longest(chunks, known):
            if old is None:
                steps.append(Create(SLICES, _slice(service, labels, ports, chunk or [])))
            elif chunk is None:
                steps.append(Delete(SLICES, old))
            elif (old.get("endpoints") or []) != chunk or old["metadata"].get("labels") != labels:
                changed = with_metadata(old, labels=labels)
                steps.append(Update(SLICES, {**changed, "endpoints": chunk or None}))
    for old in itertools.chain.from_iterable(present.values()):
        steps.append(Delete(SLICES, old))
    return steps


def _ports_of(found: View) -> _Ports:
    return tuple(
        (each.get("name", ""), each["port"], each["protocol"], each.get("appProtocol", ""))
        for each in found.get("ports") or ()
    )


def _shown(ports: _Ports) -> list[Object]:
    return [
        {
            "name": name,
            "port": number,
            "protocol": protocol,
            **({"appProtocol": application} if application else {}),
        }
        for name, number, protocol, application in ports
    ]


def _chunks(endpoints: list[Object], size: int) -> Iterator[list[Object]]:
    for start in range(0, len(endpoints), size):
        yield endpoints[start : start + size]


def _endpoint(observed: Observed, service: View, pod: View) -> Object:
    published = bool(service["spec"].get("publishNotReadyAddresses"))
    terminating, serving = is_deleting(pod), is_ready(pod)
    endpoint: Object = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {
            "ready": published or (serving and not terminating),
            "serving": serving,
            "terminating": terminating,
        },
    }
    hostname = _hostname(service, pod)
    if hostname:
        endpoint["hostname"] = hostname
    endpoint["targetRef"] = _reference(pod)
    node = pod["spec"].get("nodeName")
    if node:
        endpoint["nodeName"] = node
        found = observed.find(NODES, "", node) or {"metadata": {}}
        zone = (found["metadata"].get("labels") or {}).get(_ZONE)
        if zone:
            endpoint["zone"] = zone
    return endpoint


def _slice(service: View, labels: dict[str, str], ports: _Ports, endpoints: list[Object]) -> Object:
    metadata = service["metadata"]
    return {
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference("v1", "Service", service)],
        },
        "addressType": (service["spec"].get("ipFamilies") or ["IPv4"])[0],
        "endpoints": endpoints or None,
        "ports": _shown(ports) or None,
    }


# -- Endpoints ------------------------------------------------------------------------------------


def _endpoints(observed: Observed, service: View, pods: list[View]) -> Steps:
    metadata, spec = service["metadata"], service["spec"]
    published = bool(spec.get("publishNotReadyAddresses"))
    groups: dict[_Ports, tuple[list[Object], list[Object]]] = {}
    counted = [pod for pod in pods if published or not is_deleting(pod)]
    for pod in counted[:_MOST]:
        address: Object = {"ip": pod["status"]["podIP"]}
        if _hostname(service, pod):
            address["hostname"] = _hostname(service, pod)
        if pod["spec"].get("nodeName"):
            address["nodeName"] = pod["spec"]["nodeName"]
        address["targetRef"] = _reference(pod)
        ready, waiting = groups.setdefault(_ports(service, pod), ([], []))
        (ready if published or is_ready(pod) else waiting).append(address)
    subsets: list[Object] = []
    for ports, (ready, waiting) in sorted(groups.items()):
        if ports or not spec.get("ports"):
            subsets.append(_subset(ports, ready, waiting))
    labels = {**_labels(service), "endpoints.kubernetes.io/managed-by": "endpoint-controller"}
    old = observed.find(ENDPOINTS, metadata["namespace"], metadata["name"])
    made: Object = {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": labels,
        },
    }
    if len(counted) > _MOST:
        made["metadata"]["annotations"] = {_OVER_CAPACITY: "truncated"}
    if subsets:
        made["subsets"] = subsets
    if old is None:
        return [Create(ENDPOINTS, made)]
    if (old.get("subsets") or []) == subsets and old["metadata"].get("labels") == labels:
        return []
    changed = with_metadata(old, labels=labels, annotations=made["metadata"].get("annotations"))
    changed.pop("subsets", None)
    return [Update(ENDPOINTS, {**changed, **({"subsets": subsets} if subsets else {})})]


def _subset(ports: _Ports, ready: list[Object], waiting: list[Object]) -> Object:
    subset: Object = {}
    if ready:
        subset["addresses"] = ready
    if waiting:
        subset["notReadyAddresses"] = waiting
    if ports:
        subset["ports"] = [
            {key: value for key, value in port.items() if value} for port in _shown(ports)
        ]
    return subset
