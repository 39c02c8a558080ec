"""How builds and their pods name each other, and the fields read from both.

The names and rules are those of OpenShift origin: `pkg/build/api`, `pkg/build/util`,
`pkg/util/namer`.
"""

from typing import Final

import msgspec

from listwatch.controllers.wire import decode
from listwatch.errors import ListWatchError
from listwatch.objects import Object

#: On a pod: the name of its build. The annotation has the whole name; the label, which selects
#: pods, may have been cut to the 63 characters of a label.
BUILD_NAME: Final = "openshift.io/build.name"
#: On a build: the name of its pod, if it is not the default name.
POD_NAME: Final = "openshift.io/build.pod-name"

#: The phases of a build that has not ended.
NEW: Final = "New"
ACTIVE_PHASES: Final = frozenset({NEW, "Pending", "Running"})
#: The reason and message of a build whose pod was deleted.
BUILD_POD_DELETED: Final = "BuildPodDeleted"
BUILD_POD_DELETED_MESSAGE: Final = "The pod for this build was deleted before the build completed."

_POD_NAME_LIMIT: Final = 253
_POD_SUFFIX: Final = "build"


class InvalidBuildError(ListWatchError):
    """A build or a pod with fields of the wrong types."""


class _Strategy(msgspec.Struct, gc=False):
    type: str = ""
    jenkinsPipelineStrategy: object = None  # noqa: N815 - the name in JSON


class _Spec(msgspec.Struct, gc=False):
    strategy: _Strategy = msgspec.field(default_factory=_Strategy)


class _Status(msgspec.Struct, gc=False):
    phase: str = ""
    cancelled: bool = False
    startTimestamp: str | None = None  # noqa: N815 - as above


class _Meta(msgspec.Struct, gc=False):
    annotations: dict[str, str] | None = None
    creationTimestamp: str | None = None  # noqa: N815 - as above


class _Build(msgspec.Struct, gc=False):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder = msgspec.json.Decoder(_Build)


class BuildFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a build or pod that the controllers use.

    Attributes:
        annotations: its annotations.
        created: its creation timestamp; empty if it has none.
        phase: "" means New, as before the server sets one.
        cancelled: a user cancelled it.
        pipeline: Jenkins runs it, so it has no pod.
        started: its start; None before that.
    """

    annotations: dict[str, str]
    created: str
    phase: str
    cancelled: bool
    pipeline: bool
    started: str | None

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, in any way."""
        return self.phase not in ACTIVE_PHASES


def facts(obj: Object) -> BuildFacts:
    """Return the fields of a build or pod.

    Raises:
        InvalidBuildError: a field has the wrong type.
    """
    try:
        build = decode(_decoder, obj.raw)
    except msgspec.MsgspecError as error:
        raise InvalidBuildError(f"{obj.kind or 'object'} {obj.key}: {error}") from error
    strategy = build.spec.strategy
    return BuildFacts(
        annotations=build.metadata.annotations or {},
        created=build.metadata.creationTimestamp or "",
        phase=build.status.phase or NEW,
        cancelled=build.status.cancelled,
        pipeline=strategy.type == "JenkinsPipeline" or strategy.jenkinsPipelineStrategy is not None,
        started=build.status.startTimestamp,
    )


def build_pod_name(build: Object) -> str:
    """Return the name of a build's pod: `<build>-build`, cut with a hash above 253 characters."""
    return facts(build).annotations.get(POD_NAME) or short_name(build.name, _POD_SUFFIX)


def short_name(base: str, suffix: str, limit: int = _POD_NAME_LIMIT) -> str:
    """Return `base-suffix`; if too long, a cut base, 8 hash digits and the suffix."""
    name = f"{base}-{suffix}"
    if len(name) <= limit:
        return name
    room = limit - len(suffix) - 10  # two hyphens and the hash
    if room < 0:
        return f"{base[: max(0, limit - 9)]}-{_hash(name)}"[:limit]
    return f"{base[:room]}-{_hash(base)}-{suffix}"


def _hash(text: str) -> str:
    value = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def build_name_of(pod: Object) -> str:
    """Return the name of a pod's build, or "" if it has none."""
    return facts(pod).annotations.get(BUILD_NAME) or pod.labels.get(BUILD_NAME, "")


def build_uid_of(pod: Object) -> str:
    """Return the uid of a pod's build, or "" if the pod lacks it, as very old ones do."""
    for owner in pod.meta.owner_references:
        if owner.kind == "Build":
            return owner.uid
    return ""


def belongs_to(pod: Object, build: Object) -> bool:
    """Return whether a pod belongs to this very build, not to a predecessor of its name.

    If the pod lacks the build's uid, a pod older than the build belongs to another build.
    """
    if build_name_of(pod) != build.name or pod.namespace != build.namespace:
        return False
    if (uid := build_uid_of(pod)) and build.uid:
        return uid == build.uid
    created, build_created = facts(pod).created, facts(build).created
    # Both are RFC 3339 in UTC with whole seconds, so string order is time order.
    return not (created and build_created and created < build_created)


def pod_that_is_gone(build: Object) -> Object:
    """Return a stand-in for the missing pod of a build, with everything that names the build."""
    meta = {
        "name": build_pod_name(build),
        "namespace": build.namespace,
        "annotations": {BUILD_NAME: build.name},
        "labels": {BUILD_NAME: build.name[:63]},
        "ownerReferences": [
            {
                "apiVersion": build.api_version,
                "kind": "Build",
                "name": build.name,
                "uid": build.uid,
                "controller": True,
            }
        ],
    }
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


def build_that_is_gone(pod: Object) -> Object:
    """Return a stand-in for the missing build of a pod."""
    meta = {
        "name": build_name_of(pod),
        "namespace": pod.namespace,
        "uid": build_uid_of(pod),
        "annotations": {POD_NAME: pod.name},
    }
    return Object.from_dict(
        {
            "kind": "Build",
            "apiVersion": "build.openshift.io/v1",
            "metadata": meta,
        }
    )
