"""Claims and volumes: binding, provisioning, and protection while in use."""

from listwatch.apiserver.kinds.rules import quantity
from listwatch.apiserver.workloads.observed import (
    CLAIMS,
    PODS,
    VOLUMES,
    Create,
    Delete,
    Object,
    Observed,
    Steps,
    Update,
    View,
    with_metadata,
    without_finalizer,
)
from listwatch.apiserver.workloads.pods import is_deleting, is_finished, status_update

_CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
_VOLUME_PROTECTION = "kubernetes.io/pv-protection"
_BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
_BY_CONTROLLER = {**_BOUND, "pv.kubernetes.io/bound-by-controller": "yes"}


def claims_of(pod: View) -> list[str]:
    """Return the names of a pod's claims."""
    volumes = pod["spec"].get("volumes") or ()
    sources = (each.get("persistentVolumeClaim") for each in volumes)
    return [source["claimName"] for source in sources if source is not None]


def step_claim(observed: Observed, claim: View) -> Steps:
    """Bind a claim to a volume, provisioned if none fits; release one that is being deleted."""
    metadata = claim["metadata"]
    if is_deleting(claim):
        released = without_finalizer(CLAIMS, claim, _CLAIM_PROTECTION)
        return [] if released and _is_used(observed, claim) else released
    name = claim["spec"].get("volumeName")
    if not name:
        volume = _fitting(observed, claim)
        if volume is not None:
            return _bind(claim, volume["metadata"]["name"])
        if claim["spec"].get("storageClassName") == "":
            return []  # an administrator must create a volume
        made = _made_for(claim)
        return [Create(VOLUMES, made), *_bind(claim, made["metadata"]["name"])]
    volume = observed.find(VOLUMES, "", name)
    if volume is None:
        lost = {"phase": "Lost"} if (claim.get("status") or {}).get("phase") == "Bound" else None
        return [] if lost is None else status_update(CLAIMS, claim, lost)
    status: Object = {
        "phase": "Bound",
        "accessModes": list(volume["spec"].get("accessModes") or ()),
        "capacity": dict(volume["spec"].get("capacity") or {}),
    }
    steps: Steps = []
    reference = volume["spec"].get("claimRef")
    if reference is None or (
        not reference.get("uid") and reference.get("name") == metadata["name"]
    ):
        spec = {**volume["spec"], "claimRef": _reference(claim)}
        steps.append(Update(VOLUMES, {**volume, "spec": spec}))
    elif reference.get("uid") != metadata["uid"]:
        return []  # the volume is bound to another claim
    return [*steps, *status_update(CLAIMS, claim, {**(claim.get("status") or {}), **status})]


def step_volume(observed: Observed, volume: View) -> Steps:
    """Update a volume's phase; release it when its claim is gone."""
    reference = volume["spec"].get("claimRef")
    claim = None
    if reference is not None:
        claim = observed.find(CLAIMS, reference.get("namespace", ""), reference.get("name", ""))
        if claim is not None and reference.get("uid") not in {None, "", claim["metadata"]["uid"]}:
            claim = None
    bound = reference is not None and bool(reference.get("uid"))
    if is_deleting(volume):
        return [] if claim is not None else without_finalizer(VOLUMES, volume, _VOLUME_PROTECTION)
    phase = "Bound" if claim is not None else "Released" if bound else "Available"
    status = {**(volume.get("status") or {}), "phase": phase}
    if status != (volume.get("status") or {}):
        return status_update(VOLUMES, volume, status)
    if phase == "Released" and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
        return [Delete(VOLUMES, volume)]
    return []


def _is_used(observed: Observed, claim: View) -> bool:
    metadata = claim["metadata"]
    return any(
        metadata["name"] in claims_of(pod) and not is_finished(pod)
        for pod in observed.objects(PODS, metadata["namespace"])
    )


def _fitting(observed: Observed, claim: View) -> View | None:
    """Return the smallest unclaimed volume that satisfies this claim."""
    spec = claim["spec"]
    wanted = quantity(((spec.get("resources") or {}).get("requests") or {}).get("storage", "0"))
    found = []
    for volume in observed.objects(VOLUMES):
        offered = volume["spec"]
        size = quantity((offered.get("capacity") or {}).get("storage", "0"))
        reference = offered.get("claimRef") or {}
        meant = (reference.get("namespace"), reference.get("name")) == (
            claim["metadata"]["namespace"],
            claim["metadata"]["name"],
        )
        if (
            (not reference or (meant and not reference.get("uid")))
            and not is_deleting(volume)
            and size >= wanted
            and (offered.get("storageClassName") or "") == (spec.get("storageClassName") or "")
            and set(spec.get("accessModes") or ()) <= set(offered.get("accessModes") or ())
            and _selects(spec.get("selector"), volume)
        ):
            found.append((not meant, size, volume["metadata"]["name"], volume))
    return min(found, key=lambda each: each[:3])[3] if found else None


def _selects(selector: View | None, volume: View) -> bool:
    wanted = (selector or {}).get("matchLabels") or {}
    return bool(wanted.items() <= (volume["metadata"].get("labels") or {}).items())


def _bind(claim: View, volume: str) -> Steps:
    annotations = {**(claim["metadata"].get("annotations") or {}), **_BY_CONTROLLER}
    bound = with_metadata(claim, annotations=annotations)
    bound["spec"] = {**claim["spec"], "volumeName": volume}
    return [Update(CLAIMS, bound)]


def _reference(claim: View) -> Object:
    metadata = claim["metadata"]
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _made_for(claim: View) -> Object:
    """Return the volume that a provisioner would create."""
    spec = claim["spec"]
    name = f"pvc-{claim['metadata']['uid']}"
    requests = (spec.get("resources") or {}).get("requests") or {}
    made: Object = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": requests.get("storage", "1Gi")},
            "accessModes": list(spec.get("accessModes") or ["ReadWriteOnce"]),
            "persistentVolumeReclaimPolicy": "Delete",
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "hostPath": {"path": f"/var/lib/volumes/{name}"},
            "claimRef": _reference(claim),
        },
    }
    if spec.get("storageClassName"):
        made["spec"]["storageClassName"] = spec["storageClassName"]
    return made
