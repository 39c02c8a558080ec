"""The Pod Security Standards that a namespace's labels ask for.

The levels and their controls are those of the public standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/); the labels work as in
`pod-security-admission`. A version in a label is validated and shown, but pods are always checked
against the newest rules.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from listwatch.schema.causes import Cause, invalid_value

View = Mapping[str, Any]

_PREFIX = "pod-security.kubernetes.io/"
_LEVELS = ("privileged", "baseline", "restricted")
_VERSION = re.compile(r"latest|v1\.(0|[1-9][0-9]*)")


class Level(NamedTuple):
    """The requirement of one mode: a level of the standard, and its version."""

    name: str = "privileged"
    version: str = "latest"

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"


class Policy(NamedTuple):
    """The levels of a namespace: for refusals and for warnings."""

    enforce: Level
    warn: Level


_NOTHING = Policy(Level(), Level())


def policy_of(labels: Mapping[str, str]) -> Policy:
    """Return the policy in a namespace's labels.

    As on a real server, an invalid label counts as the strictest level.
    """
    if not any(key.startswith(_PREFIX) for key in labels):
        return _NOTHING
    enforce = _level(labels, "enforce", "privileged")
    # without a label for warnings, the level for refusals applies
    warn = _level(labels, "warn", enforce.name)
    if f"{_PREFIX}warn" not in labels:
        warn = enforce
    return Policy(enforce, warn)


def _level(labels: Mapping[str, str], mode: str, unsaid: str) -> Level:
    name = labels.get(f"{_PREFIX}{mode}", unsaid)
    version = labels.get(f"{_PREFIX}{mode}-version", "latest")
    if not _VERSION.fullmatch(version):
        version = "latest"
    return Level(name if name in _LEVELS else "restricted", version)


def label_causes(labels: Mapping[str, str], before: Mapping[str, str]) -> list[Cause]:
    """Return the invalid labels of a namespace, except those that were invalid before."""
    causes: list[Cause] = []
    for mode in ("enforce", "audit", "warn"):
        for key, fits, why in (
            (mode, _LEVELS.__contains__, "must be one of privileged, baseline, restricted"),
            (f"{mode}-version", _VERSION.fullmatch, 'must be "latest" or "v1.x"'),
        ):
            value = labels.get(_PREFIX + key)
            if value is not None and not fits(value) and before.get(_PREFIX + key) != value:
                causes.append(invalid_value(f"metadata.labels[{_PREFIX}{key}]", value, why))
    return causes


def violations(spec: View, metadata: View, level: Level) -> list[tuple[str, str]]:
    """Return the controls that a pod violates, each with the violating parts.

    Args:
        spec: the pod's spec, with defaults.
        metadata: the pod's; some annotations preceded fields.
        level: the level to check.
    """
    if level.name == "privileged":
        return []
    checks = _BASELINE if level.name == "baseline" else _RESTRICTED
    pod = _Pod(spec, metadata, tuple(_containers(spec)))
    found = []
    for reason, check in checks:
        broken = check(pod)
        if broken:
            found.append((reason, broken))
    return found


def told(found: Iterable[tuple[str, str]], level: Level) -> str:
    """Return the violations in the server's words."""
    words = ", ".join(f"{reason} ({detail})" for reason, detail in found)
    return f'PodSecurity "{level}": {words}'


def matters(new: View, old: View) -> bool:
    """Return whether a pod's update changes anything that the standard checks."""
    for group in ("containers", "initContainers", "ephemeralContainers"):
        images = [(each.get("name"), each.get("image")) for each in new.get(group) or ()]
        if images != [(each.get("name"), each.get("image")) for each in old.get(group) or ()]:
            return True
    return False


def warnings_of_pods(pods: Iterable[View], namespace: str, level: Level) -> list[str]:
    """Return warnings about existing pods that violate a namespace's new level."""
    counted: dict[str, list[str]] = {}
    for pod in pods:
        found = violations(pod.get("spec") or {}, pod["metadata"], level)
        if found:
            reasons = ", ".join(reason for reason, _ in found)
            counted.setdefault(reasons, []).append(pod["metadata"]["name"])
    if not counted:
        return []
    said = []
    for reasons, names in counted.items():
        others = len(names) - 1
        more = f" (and {others} other pod{'s' if others > 1 else ''})" if others else ""
        said.append(f"{min(names)}{more}: {reasons}")
    head = f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level '
    return [f'{head}"{level}"', *sorted(said)]


class _Pod(NamedTuple):
    spec: View
    metadata: View
    containers: tuple[View, ...]

    @property
    def context(self) -> View:
        context: View = self.spec.get("securityContext") or {}
        return context

    @property
    def windows(self) -> bool:
        return (self.spec.get("os") or {}).get("name") == "windows"

    @property
    def own_users(self) -> bool:
        return self.spec.get("hostUsers") is False


_Check = Callable[[_Pod], str]


def _containers(spec: View) -> Iterator[View]:
    for group in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(group) or ()


def _context(container: View) -> View:
    context: View = container.get("securityContext") or {}
    return context


def _named(word: str, names: Iterable[str]) -> str:
    """Return one or several names with their noun: `container "a"`, `containers "a", "b"`."""
    names = list(dict.fromkeys(names))
    return f"{word}{'s' if len(names) > 1 else ''} " + ", ".join(f'"{name}"' for name in names)


def _where(pod: _Pod, holds: Callable[[View], bool], what: str) -> str:
    names = [each.get("name", "") for each in pod.containers if holds(each)]
    return f"{_named('container', names)} {what}" if names else ""


def _pod_and_containers(pod: _Pod, bad: Callable[[View], bool], what: str) -> str:
    """Return which contexts are bad, the pod's or the containers', as text."""
    parts = [f"pod {what}"] if bad(pod.context) else []
    inside = _where(pod, lambda each: bad(_context(each)), what)
    return " and ".join([*parts, *([inside] if inside else [])])


def _profile(context: View, key: str) -> str:
    return str((context.get(key) or {}).get("type") or "")


_ARMOR = "container.apparmor.security.beta.kubernetes.io/"


def _app_armor(pod: _Pod) -> str:
    def bad(context: View) -> bool:
        return _profile(context, "appArmorProfile") not in {"", "RuntimeDefault", "Localhost"}

    found = _pod_and_containers(
        pod, bad, 'must not set securityContext.appArmorProfile.type to "Unconfined"'
    )
    annotations = pod.metadata.get("annotations") or {}
    noted = [
        f'{key}="{value}"'
        for key, value in sorted(annotations.items())
        if key.startswith(_ARMOR)
        and value not in {"", "runtime/default"}
        and not value.startswith("localhost/")
    ]
    return ", ".join([*([found] if found else []), *noted])


_DEFAULT_CAPABILITIES = frozenset(
    (
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    )
)


def _added(container: View) -> list[str]:
    return list((_context(container).get("capabilities") or {}).get("add") or ())


def _capabilities(pod: _Pod) -> str:
    extra = sorted(
        {
            name
            for each in pod.containers
            for name in _added(each)
            if name not in _DEFAULT_CAPABILITIES
        }
    )
    shown = ", ".join(f'"{name}"' for name in extra)
    return _where(
        pod,
        lambda each: any(name not in _DEFAULT_CAPABILITIES for name in _added(each)),
        f"must not include {shown} in securityContext.capabilities.add",
    )


def _host_namespaces(pod: _Pod) -> str:
    return ", ".join(
        f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(key)
    )


def _host_paths(pod: _Pod) -> str:
    names = [each.get("name", "") for each in pod.spec.get("volumes") or () if each.get("hostPath")]
    return _named("volume", names) if names else ""


def _host_ports(pod: _Pod) -> str:
    def ports(container: View) -> list[int]:
        return [each["hostPort"] for each in container.get("ports") or () if each.get("hostPort")]

    every = sorted({port for each in pod.containers for port in ports(each)})
    word = "hostPorts" if len(every) > 1 else "hostPort"
    return _where(
        pod, lambda each: bool(ports(each)), f"uses {word} {', '.join(map(str, every))}"
    ).replace('" uses', '" uses' if len(every) < 2 else '" use')


def _probe_hosts(pod: _Pod) -> str:
    def named(container: View) -> bool:
        lifecycle = container.get("lifecycle") or {}
        handlers = [
            container.get(key) for key in ("livenessProbe", "readinessProbe", "startupProbe")
        ] + [lifecycle.get("postStart"), lifecycle.get("preStop")]
        return any(
            (handler or {}).get(kind, {}).get("host")
            for handler in handlers
            for kind in ("httpGet", "tcpSocket")
        )

    return _where(pod, named, "uses probe or lifecycle host")


def _privileged(pod: _Pod) -> str:
    return _where(
        pod,
        lambda each: bool(_context(each).get("privileged")),
        "must not set securityContext.privileged=true",
    )


def _proc_mount(pod: _Pod) -> str:
    if pod.own_users:
        return ""
    return _where(
        pod,
        lambda each: _context(each).get("procMount") not in {None, "Default"},
        'must not set securityContext.procMount to "Unmasked"',
    )


_SELINUX_TYPES = frozenset(
    ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
)


def _selinux(pod: _Pod) -> str:
    def bad(context: View) -> bool:
        options = context.get("seLinuxOptions") or {}
        return (
            options.get("type", "") not in _SELINUX_TYPES
            or bool(options.get("user"))
            or bool(options.get("role"))
        )

    return _pod_and_containers(pod, bad, "set forbidden securityContext.seLinuxOptions")


def _seccomp(pod: _Pod) -> str:
    return _pod_and_containers(
        pod,
        lambda context: _profile(context, "seccompProfile") == "Unconfined",
        'must not set securityContext.seccompProfile.type to "Unconfined"',
    )


_SAFE_SYSCTLS = frozenset(
    (
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    )
)


def _sysctls(pod: _Pod) -> str:
    names = [each.get("name", "") for each in pod.context.get("sysctls") or ()]
    return ", ".join(name for name in names if name not in _SAFE_SYSCTLS)


def _host_process(pod: _Pod) -> str:
    return _pod_and_containers(
        pod,
        lambda context: bool((context.get("windowsOptions") or {}).get("hostProcess")),
        "must not set securityContext.windowsOptions.hostProcess=true",
    )


def _escalation(pod: _Pod) -> str:
    if pod.windows:
        return ""
    return _where(
        pod,
        lambda each: _context(each).get("allowPrivilegeEscalation") is not False,
        "must set securityContext.allowPrivilegeEscalation=false",
    )


def _unrestricted(pod: _Pod) -> str:
    if pod.windows:
        return ""
    kept = _where(
        pod,
        lambda each: "ALL" not in ((_context(each).get("capabilities") or {}).get("drop") or ()),
        'must set securityContext.capabilities.drop=["ALL"]',
    )
    extra = sorted(
        {name for each in pod.containers for name in _added(each) if name != "NET_BIND_SERVICE"}
    )
    shown = ", ".join(f'"{name}"' for name in extra)
    added = _where(
        pod,
        lambda each: any(name != "NET_BIND_SERVICE" for name in _added(each)),
        f"must not include {shown} in securityContext.capabilities.add",
    )
    return "; ".join(part for part in (kept, added) if part)


_PLAIN_VOLUMES = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)


def _volume_types(pod: _Pod) -> str:
    names, kinds = [], set()
    for volume in pod.spec.get("volumes") or ():
        found = [key for key in volume if key != "name" and key not in _PLAIN_VOLUMES]
        if found:
            names.append(volume.get("name", ""))
            kinds.update(found)
    if not names:
        return ""
    word = "use" if len(names) > 1 else "uses"
    return f"{_named('volume', names)} {word} restricted " + _named("volume type", sorted(kinds))


def _said_of_each(
    pod: _Pod, key: Callable[[View], Any], good: Callable[[Any], bool], what: str, own: str
) -> str:
    """Return which containers the pod's context leaves unset, or set wrongly, as text."""
    parts = []
    whole = key(pod.context)
    if whole is not None and not good(whole):
        parts.append(f"pod {own}")
    wrong = [
        each.get("name", "")
        for each in pod.containers
        if (value := key(_context(each))) is not None and not good(value)
    ]
    if wrong:
        parts.append(f"{_named('container', wrong)} {own}")
    if parts or whole is not None:
        return " and ".join(parts)
    unsaid = [each.get("name", "") for each in pod.containers if key(_context(each)) is None]
    return f"pod or {_named('container', unsaid)} {what}" if unsaid else ""


def _non_root(pod: _Pod) -> str:
    if pod.own_users:
        return ""
    return _said_of_each(
        pod,
        lambda context: context.get("runAsNonRoot"),
        bool,
        "must set securityContext.runAsNonRoot=true",
        "must not set securityContext.runAsNonRoot=false",
    )


def _root(pod: _Pod) -> str:
    if pod.own_users:
        return ""
    return _pod_and_containers(
        pod, lambda context: context.get("runAsUser") == 0, "must not set runAsUser=0"
    )


def _seccomp_set(pod: _Pod) -> str:
    if pod.windows:
        return ""
    return _said_of_each(
        pod,
        lambda context: _profile(context, "seccompProfile") or None,
        {"RuntimeDefault", "Localhost"}.__contains__,
        'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"',
        'must not set securityContext.seccompProfile.type to "Unconfined"',
    )


_HOST_NAMESPACES = ("host namespaces", _host_namespaces)
_SHARED: tuple[tuple[str, _Check], ...] = (
    ("hostPort", _host_ports),
    ("probe or lifecycle host", _probe_hosts),
    ("privileged", _privileged),
    ("procMount", _proc_mount),
    ("seLinuxOptions", _selinux),
)
_LAST: tuple[tuple[str, _Check], ...] = (
    ("forbidden sysctls", _sysctls),
    ("hostProcess", _host_process),
)
#: The controls of each level, in the server's order.
_BASELINE: tuple[tuple[str, _Check], ...] = (
    ("forbidden AppArmor profile", _app_armor),
    ("non-default capabilities", _capabilities),
    _HOST_NAMESPACES,
    ("hostPath volumes", _host_paths),
    *_SHARED,
    ("seccompProfile", _seccomp),
    *_LAST,
)
_RESTRICTED: tuple[tuple[str, _Check], ...] = (
    ("forbidden AppArmor profile", _app_armor),
    _HOST_NAMESPACES,
    *_SHARED,
    *_LAST,
    ("allowPrivilegeEscalation != false", _escalation),
    ("unrestricted capabilities", _unrestricted),
    ("restricted volume types", _volume_types),
    ("runAsNonRoot != true", _non_root),
    ("runAsUser=0", _root),
    ("seccompProfile", _seccomp_set),
)
