"""The rules about fields that a pod's operating system lacks (`validateOS` and similar)."""

from collections.abc import Iterator

from listwatch.apiserver.kinds.kind import View
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required

_NO_WINDOWS = "cannot be set for a windows pod"
_NO_LINUX = "windows options cannot be set for a linux pod"
_OF_LINUX = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
)
_OF_LINUX_CONTAINERS = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
)


def check_system(spec: View, path: str) -> list[Cause]:
    """Return the fields of a pod's spec that its operating system does not support.

    Args:
        spec: the pod's spec.
        path: its path.
    """
    causes = _check_host_processes(spec, path)
    system = spec.get("os")
    if system is None:
        return causes
    name = system.get("name", "")
    if not name:
        return [*causes, required(f"{path}.os.name", "cannot be empty")]
    if name == "linux":
        return [*causes, *_for_linux(spec, path)]
    if name == "windows":
        return [*causes, *_for_windows(spec, path)]
    return [*causes, not_supported(f"{path}.os", name, ("linux", "windows"))]


def _contexts(spec: View, path: str) -> Iterator[tuple[View, str]]:
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{path}.{group}[{index}].securityContext"
            yield container.get("securityContext") or {}, where


def _for_linux(spec: View, path: str) -> Iterator[Cause]:
    own = (spec.get("securityContext") or {}, f"{path}.securityContext")
    for context, where in (own, *_contexts(spec, path)):
        if "windowsOptions" in context:
            yield forbidden_value(f"{where}.windowsOptions", _NO_LINUX)


def _for_windows(spec: View, path: str) -> Iterator[Cause]:
    for key in ("hostUsers", "shareProcessNamespace"):
        if spec.get(key) is not None:
            yield forbidden_value(f"{path}.{key}", _NO_WINDOWS)
    for key in ("hostPID", "hostIPC"):
        if spec.get(key):
            yield forbidden_value(f"{path}.{key}", _NO_WINDOWS)
    context = spec.get("securityContext") or {}
    for key in _OF_LINUX:
        if context.get(key) is not None:
            yield forbidden_value(f"{path}.securityContext.{key}", _NO_WINDOWS)
    for context, where in _contexts(spec, path):
        for key in _OF_LINUX_CONTAINERS:
            if context.get(key) is not None:
                yield forbidden_value(f"{where}.{key}", _NO_WINDOWS)


def _check_host_processes(spec: View, path: str) -> list[Cause]:
    """Return the rules that Windows host process containers violate."""
    options = (spec.get("securityContext") or {}).get("windowsOptions") or {}
    whole = options.get("hostProcess")
    causes: list[Cause] = []
    said = []
    for context, where in _contexts(spec, path):
        own = (context.get("windowsOptions") or {}).get("hostProcess")
        if None not in {whole, own} and whole != own:
            why = f"pod hostProcess value must be identical if both are specified, was {whole}"
            causes.append(invalid_value(f"{where}.windowsOptions.hostProcess", own, why))
        said.append(whole if own is None else own)
    if not any(said):
        return causes
    if not all(said):
        why = "If pod contains any hostProcess containers then all containers must be"
        causes.append(invalid_value(path, "", f"{why} HostProcess containers"))
    if not spec.get("hostNetwork"):
        why = "hostNetwork must be true if pod contains any hostProcess containers"
        causes.append(invalid_value(f"{path}.hostNetwork", False, why))
    return causes
