from controllers.build_cluster import Cluster, build, build_pod
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import DeltaType
from listwatch.cache.list_watch import ListOptions
from listwatch.controllers.builds.list_watch import (
    BuildDeleteListWatch,
    BuildPodDeleteListWatch,
    DeletionsOnly,
    EveryKeyKnown,
)
from listwatch.objects import DeletedFinalStateUnknown, Object


async def test_an_empty_list_does_not_end_what_is_queued() -> None:
    queue = DeltaFIFO(known_objects=EveryKeyKnown())
    store = DeletionsOnly(queue)
    store.add(Object.from_dict(build_pod("a")))
    store.update(Object.from_dict(build_pod("a")))
    store.replace([], "7")
    store.resync()
    store.bookmark("8")
    deltas = await queue.pop(lambda _: None)
    assert [delta.type for delta in deltas] == [DeltaType.ADDED, DeltaType.UPDATED]
    store.delete(Object.from_dict(build_pod("a")))
    assert len(queue) == 1


def test_every_key_is_known_in_no_state() -> None:
    known = EveryKeyKnown()
    assert list(known.list_keys()) == []
    assert known.get_by_key("ci/a") == DeletedFinalStateUnknown("ci/a")


class Deletions:
    def __init__(self) -> None:
        self.found: list[Object] = []

    def delete(self, obj: object) -> None:
        assert isinstance(obj, Object)
        self.found.append(obj)


async def test_the_list_is_empty_has_the_pods_version_and_names_what_is_gone() -> None:
    cluster, deletions = Cluster(), Deletions()
    for number in range(7):
        cluster.builds.add(build(f"app-{number}", uid=f"b{number}"))
        if number != 3:
            cluster.pods.add(build_pod(f"app-{number}", uid=f"p{number}", owner=f"b{number}"))
    source = BuildPodDeleteListWatch(cluster.pods, cluster.builds, cluster, deletions)
    listed = await source.list(ListOptions())
    assert listed.items == []
    assert listed.resource_version == cluster.pods.resource_version
    (gone,) = deletions.found
    assert gone.key == "ci/app-3-build"
    assert gone["metadata"]["annotations"] == {"openshift.io/build.name": "app-3"}
    assert gone.meta.owner_references[0].uid == "b3"


async def test_pods_that_are_ending_already_or_are_of_no_build_are_left() -> None:
    cluster, deletions = Cluster(), Deletions()
    ending = build_pod("ends", uid="p1")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stranger = build_pod("stranger", uid="p2")
    del stranger["metadata"]["annotations"], stranger["metadata"]["labels"]
    for pod in (ending, stranger, build_pod("gone", uid="p3", owner="b9")):
        cluster.pods.add(pod)
    source = BuildDeleteListWatch(cluster.builds, cluster.pods, cluster, deletions)
    listed = await source.list(ListOptions())
    assert listed.resource_version == cluster.builds.resource_version
    (gone,) = deletions.found
    assert (gone.key, gone.uid) == ("ci/gone", "b9")
    assert gone["metadata"]["annotations"] == {"openshift.io/build.pod-name": "gone-build"}
