"""In-memory builds and pods for tests of the build controllers."""

from typing import Any

from listwatch.clock import Clock
from listwatch.controllers.builds.api import MutateBuild
from listwatch.objects import Object
from listwatch.testing.fake_controller_source import FakeControllerSource

NAME = "openshift.io/build.name"


def build(name: str, phase: str = "Running", *, uid: str = "b1", **more: Any) -> dict[str, Any]:
    return {
        "kind": "Build",
        "apiVersion": "build.openshift.io/v1",
        "metadata": {
            "name": name,
            "namespace": "ci",
            "uid": uid,
            "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z"),
            "annotations": more.pop("annotations", {}),
        },
        "spec": {"strategy": {"type": more.pop("strategy", "Docker")}},
        "status": {"phase": phase, **more},
    }


def build_pod(
    build_name: str, *, uid: str = "p1", owner: str = "b1", created: str = "2026-01-01T00:00:10Z"
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "name": f"{build_name}-build",
        "namespace": "ci",
        "uid": uid,
        "creationTimestamp": created,
        "annotations": {NAME: build_name},
        "labels": {NAME: build_name},
    }
    if owner:
        meta["ownerReferences"] = [
            {
                "kind": "Build",
                "name": build_name,
                "uid": owner,
                "apiVersion": "build.openshift.io/v1",
            }
        ]
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta}


class Cluster:
    """Two sources and the API that changes them; record events and writes."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.builds = FakeControllerSource(
            kind="Build", api_version="build.openshift.io/v1", clock=clock
        )
        self.pods = FakeControllerSource(kind="Pod", api_version="v1", clock=clock)
        self.events: list[tuple[str, str, str, str]] = []
        self.deleted: list[tuple[str, str]] = []
        self.conflicts = 0
        self.broken: Exception | None = None

    async def get_build(self, namespace: str, name: str) -> Object | None:
        return self.builds.objects.get(f"{namespace}/{name}")

    async def get_pod(self, namespace: str, name: str) -> Object | None:
        return self.pods.objects.get(f"{namespace}/{name}")

    async def change_build(self, namespace: str, name: str, mutate: MutateBuild) -> Object | None:
        if self.broken is not None:
            raise self.broken
        while True:
            found = await self.get_build(namespace, name)
            if found is None:
                return None
            value = found.to_dict()
            changed = mutate(value)
            if self.conflicts:
                self.conflicts -= 1
                continue
            return self.builds.modify(value) if changed else None

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        found = self.pods.objects.get(f"{namespace}/{name}")
        if found is None or found.uid != uid:
            return False
        self.pods.delete(found)
        self.deleted.append((name, uid))
        return True

    def event(self, obj: object, type: str, reason: str, message: str) -> None:  # noqa: A002 - the recorder's
        assert isinstance(obj, Object)
        self.events.append((obj.key, type, reason, message))

    def status(self, name: str) -> dict[str, Any]:
        found = self.builds.objects[f"ci/{name}"].to_dict()["status"]
        assert isinstance(found, dict)
        return found
