"""Warnings about pods and templates of pods (`pkg/api/pod/warnings.go`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from listwatch.apiserver.kinds.rules import quantity

View = Mapping[str, Any]

_TERMS = (
    ("requiredDuringSchedulingIgnoredDuringExecution", ""),
    ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm"),
)
_LABELS: Mapping[str, str] = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    **{
        old: f'deprecated since v1.17; use "{new}" instead'
        for old, new in (
            ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
            ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
            ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        )
    },
}
_ANNOTATIONS: Mapping[str, str] = {
    "scheduler.alpha.kubernetes.io/critical-pod": (
        'non-functional in v1.16+; use the "priorityClassName" field instead'
    ),
    "security.alpha.kubernetes.io/sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
    "security.alpha.kubernetes.io/unsafe-sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
}
#: The versions since which the plugin of a volume is deprecated and gone, by the volume's field.
GONE_VOLUMES: Mapping[str, str] = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
_APPARMOR = 'deprecated since v1.30; use the "appArmorProfile" field instead'
_BYTES = ("memory", "ephemeral-storage")
_NO_POD = "a null labelSelector results in matching no pod"


def pod_advice(spec: View, metadata: View, path: str) -> Iterator[str]:
    """Yield the warnings about a pod or a template of pods.

    Args:
        spec: the pod's spec.
        metadata: the metadata of the pod or of the template.
        path: the path of the spec, such as `spec.template.spec`.
    """
    notes = f"{path.removesuffix('spec')}metadata.annotations"
    annotations = metadata.get("annotations") or {}
    yield from _labels(spec, path)
    if annotations:
        yield from (
            f"{notes}[{key}]: {why}" for key, why in _ANNOTATIONS.items() if key in annotations
        )
    yield from _volumes(spec.get("volumes") or (), path)
    if "hostAliases" in spec:
        yield from _repeated(spec["hostAliases"] or (), f"{path}.hostAliases", "ip")
    if "imagePullSecrets" in spec:
        yield from _pull_secrets(spec["imagePullSecrets"] or (), f"{path}.imagePullSecrets")
    if "overhead" in spec:
        yield from fractions(spec["overhead"] or {}, f"{path}.overhead")
    security = spec.get("securityContext") or {}
    seccomp = "seccomp.security.alpha.kubernetes.io/pod"
    if seccomp in annotations and security.get("seccompProfile") is None:
        yield f"{notes}[{seccomp}]: {_SECCOMP}"
    for container, here in _containers(spec, path):
        if annotations:
            yield from _profiles(container, security, annotations, notes, path)
        resources = container.get("resources") or {}
        amounts = [(part, resources[part]) for part in ("limits", "requests") if part in resources]
        for name in _BYTES if amounts else ():
            for part, found in amounts:
                yield from fractions(found, f"{here}.resources.{part}", (name,))
        if "env" in container:
            yield from _variables(container["env"] or (), f"{here}.env")
    yield from _ports(spec, path)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        yield (
            f"{path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and "
            "will be treated as 1"
        )
    if spec.get("affinity"):
        yield from _affinity(spec["affinity"], f"{path}.affinity")


def _containers(spec: View, path: str) -> Iterator[tuple[View, str]]:
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield container, f"{path}.{group}[{index}]"


def _labels(spec: View, path: str) -> Iterator[str]:
    for key in sorted(spec.get("nodeSelector") or {}):
        if key in _LABELS:
            yield f"{path}.nodeSelector[{key}]: {_LABELS[key]}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required, preferred = (affinity.get(name) for name, _ in _TERMS)
    here = f"{path}.affinity.nodeAffinity"
    for index, term in enumerate((required or {}).get("nodeSelectorTerms") or ()):
        yield from node_term(term, f"{here}.{_TERMS[0][0]}.nodeSelectorTerms[{index}]")
    for index, each in enumerate(preferred or ()):
        term = each.get("preference") or {}
        yield from node_term(term, f"{here}.{_TERMS[1][0]}[{index}].preference")
    for index, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        where, key = f"{path}.topologySpreadConstraints[{index}]", each.get("topologyKey")
        if key in _LABELS:
            yield f"{where}.topologyKey: {key} is {_LABELS[key]}"
        if each.get("labelSelector") is None:
            yield f"{where}.labelSelector: {_NO_POD}"


def node_term(term: View, path: str, key: str = "matchExpressions") -> Iterator[str]:
    """Yield the warnings about deprecated labels in a term that selects nodes."""
    for index, expression in enumerate(term.get(key) or ()):
        name = expression.get("key")
        if name in _LABELS:
            yield f"{path}.{key}[{index}].key: {name} is {_LABELS[name]}"


def fractions(amounts: View, path: str, names: Iterable[str] = _BYTES) -> Iterator[str]:
    """Yield the warnings about amounts that are not a whole number of bytes."""
    for name in names:
        amount = amounts.get(name)
        if amount is not None and quantity(amount) % 1:
            yield (
                f'{path}[{name}]: fractional byte value "{amount}" is invalid, must be an integer'
            )


def _pull_secrets(secrets: Sequence[View], path: str) -> Iterator[str]:
    yield from _repeated(secrets, path, "name")
    for index, secret in enumerate(secrets):
        if not secret.get("name"):
            yield f'{path}[{index}].name: invalid empty name ""'


def _repeated(items: Iterable[View], path: str, key: str) -> Iterator[str]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        value = item.get(key, "")
        if value in seen:
            yield f'{path}[{index}].{key}: duplicate {key} "{value}"'
        seen.add(value)


def _profiles(
    container: View, security: View, annotations: View, notes: str, path: str
) -> Iterator[str]:
    own, name = container.get("securityContext") or {}, container.get("name", "")
    key = f"container.seccomp.security.alpha.kubernetes.io/{name}"
    if key in annotations and own.get("seccompProfile") is None:
        yield f"{notes}[{key}]: {_SECCOMP}"
    key = f"container.apparmor.security.beta.kubernetes.io/{name}"
    has = own.get("appArmorProfile") or security.get("appArmorProfile")
    if key in annotations and not has and path != "spec":
        yield f"{notes}[{key}]: {_APPARMOR}"


def _variables(variables: Iterable[View], path: str) -> Iterator[str]:
    seen: set[str] = set()
    for index, variable in enumerate(variables):
        name, value = variable.get("name", ""), variable.get("value", "")
        reference = f"$({name})"
        # a value that extends the previous one is fine
        extends = variable.get("valueFrom") is None and value != reference and reference in value
        if name in seen and not extends:
            yield (
                f'{path}[{index}]: hides previous definition of "{name}", which may be dropped '
                "when using apply"
            )
        seen.add(name)


def _ports(spec: View, path: str) -> Iterator[str]:
    known: dict[tuple[Any, Any], list[tuple[str, str, int]]] = {}
    for container, here in _containers(spec, path):
        for index, port in enumerate(container.get("ports") or ()):
            where = f"{here}.ports[{index}]"
            ip, number = port.get("hostIP") or "", port.get("hostPort") or 0
            others = known.setdefault((port.get("containerPort"), port.get("protocol")), [])
            for other, other_ip, other_number in others:
                if (ip, number) == (other_ip, other_number):
                    yield f"{where}: duplicate port definition with {other}"
                elif not number or not other_number:
                    yield f"{where}: overlapping port definition with {other}"
                elif number == other_number and bool(ip) != bool(other_ip):
                    yield f"{where}: dangerously ambiguous port definition with {other}"
            others.append((where, ip, number))


def _affinity(affinity: View, path: str) -> Iterator[str]:
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        for name, within in _TERMS:
            for index, each in enumerate(rules.get(name) or ()):
                term = each.get(within) or {} if within else each
                if term.get("labelSelector") is None:
                    dot = f".{within}" if within else ""
                    yield f"{path}.{kind}.{name}[{index}]{dot}.labelSelector: {_NO_POD}"


def _volumes(volumes: Iterable[View], path: str) -> Iterator[str]:
    for index, volume in enumerate(volumes):
        where = f"{path}.volumes[{index}]"
        if not GONE_VOLUMES.keys().isdisjoint(volume):
            yield from (
                f"{where}.{key}: {why}" for key, why in GONE_VOLUMES.items() if volume.get(key)
            )
        if "ephemeral" in volume:
            template = (volume["ephemeral"] or {}).get("volumeClaimTemplate") or {}
            here = f"{where}.ephemeral.volumeClaimTemplate.spec"
            yield from claim_advice(template.get("spec") or {}, here)
    for volume in volumes:
        if not _FILLED.isdisjoint(volume):
            yield from _overlaps(volume)


_FILLED = frozenset(("configMap", "secret", "downwardAPI", "projected"))


def claim_advice(spec: View, path: str) -> Iterator[str]:
    """Yield the warnings about the spec of a claim."""
    requests = (spec.get("resources") or {}).get("requests") or {}
    yield from fractions(requests, f"{path}.resources.requests", ("storage",))


def _overlaps(volume: View) -> Iterator[str]:
    name = volume.get("name", "")
    for key, kind, of in (
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
        ("downwardAPI", "DownwardAPI", ""),
    ):
        source = volume.get(key)
        if source is not None:
            named = f' "{source.get(of, "")}"' if of else ""
            paths = [each.get("path", "") for each in source.get("items") or ()]
            yield from _collisions(paths, f'volume "{name}" ({kind}{named}): overlapping paths')
    projected, known = volume.get("projected"), set[str]()
    for source in (projected or {}).get("sources") or ():
        found = _projection(source)
        if found is None:
            yield f'volume "{name}" (Projected) has no sources provided'
            continue
        kind, paths = found
        words = f'volume "{name}" (Projected {kind}): overlapping paths'
        if not paths:
            continue
        yield from _collisions(paths, words)
        yield from _collisions(sorted([*set(paths), *known]), words)
        known |= set(paths)


def _projection(source: View) -> tuple[str, list[str]] | None:
    """Return the name of a projected source in warnings, and the paths of its files."""
    for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        part = source.get(key)
        if part is not None:
            paths = [each.get("path", "") for each in part.get("items") or ()]
            return f'{kind} "{part.get("name", "")}"', paths
    part = source.get("downwardAPI")
    if part is not None:
        return "DownwardAPI", [each.get("path", "") for each in part.get("items") or ()]
    part = source.get("serviceAccountToken")
    if part is not None:
        return "ServiceAccountToken", [part.get("path", "")]
    part = source.get("clusterTrustBundle")
    if part is not None:
        name = part.get("name", part.get("signerName", ""))
        return f'ClusterTrustBundle "{name}"', [part.get("path", "")]
    return None if not source else ("", [])


def _collisions(paths: Iterable[str], words: str) -> Iterator[str]:
    seen: list[str] = []
    for each in paths:
        path = each.rstrip("/")
        found = next((other for other in seen if _overlap(other, path)), "")
        if found:
            yield f'{words}: "{path}" with "{found}"'
        if path not in seen:
            seen.append(path)


def _overlap(one: str, other: str) -> bool:
    if not one or not other:
        return False
    return f"{one}/".startswith(other) or f"{other}/".startswith(one)
