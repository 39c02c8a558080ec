"""Malformed builds and pods affect only themselves, and are reported."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.build_cluster import NAME, Cluster, build, build_pod
from listwatch.clock import FakeClock
from listwatch.controllers.builds.factory import BuildControllerFactory, BuildPodControllerFactory

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
FIELDS = st.dictionaries(
    st.sampled_from(["phase", "cancelled", "startTimestamp", "reason"]), JSON, max_size=4
)


async def search(cluster: Cluster, clock: FakeClock) -> int:
    """Run both controllers for a while and return the number of failed searches."""
    pods = cluster.pods.list_watch(label_selector=NAME)
    controllers = (
        BuildPodControllerFactory(
            cluster, pods, cluster.builds, recorder=cluster, clock=clock
        ).create_delete_controller(),
        BuildControllerFactory(
            cluster, cluster.builds, pods, clock=clock
        ).create_delete_controller(),
    )
    stop = asyncio.Event()
    tasks = [asyncio.create_task(controller.run_until(stop)) for controller in controllers]
    await clock.advance(2)
    await clock.advance(310)
    stop.set()
    await clock.settle()
    await asyncio.gather(*tasks)
    return sum(controller.statistics().failed_searches for controller in controllers)


@pytest.mark.parametrize("wrong", [{"phase": 5}, {"phase": "Running", "cancelled": "perhaps"}])
async def test_a_build_of_wrong_types_is_reported_and_the_others_are_handled(
    wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    cluster.builds.add({**build("bad", uid="b0"), "status": wrong})
    cluster.builds.add(build("lost"))
    bad_pod = build_pod("orphan", uid="p0", owner="b9")
    bad_pod["metadata"]["annotations"] = {NAME: 5}
    cluster.pods.add(bad_pod)
    cluster.pods.add(build_pod("gone", owner="b8"))
    assert await search(cluster, FakeClock()) == 0
    assert cluster.status("lost")["phase"] == "Error"
    assert cluster.deleted == [("gone-build", "p1")]
    assert "Build ci/bad" in caplog.text
    assert "Pod ci/orphan-build" in caplog.text


async def test_null_is_no_value() -> None:
    cluster = Cluster()
    value = build("lost", cancelled=None, startTimestamp=None)
    value["spec"] = None
    cluster.builds.add(value)
    await search(cluster, FakeClock())
    assert cluster.status("lost")["phase"] == "Error"


@pytest.mark.parametrize("start", ["yesterday", "2026-01-01", ""])
async def test_a_start_that_is_no_time_leaves_the_duration_out(start: str) -> None:
    cluster = Cluster()
    cluster.builds.add(build("lost", startTimestamp=start))
    await search(cluster, FakeClock())
    assert cluster.status("lost")["phase"] == "Error"
    assert "duration" not in cluster.status("lost")


@given(status=JSON | FIELDS, spec=JSON, annotations=JSON)
def test_whatever_a_build_is_made_of_its_neighbour_is_handled(
    status: object, spec: object, annotations: object
) -> None:
    async def main() -> None:
        cluster = Cluster()
        value = {**build("odd", uid="b0"), "status": status, "spec": spec}
        value["metadata"]["annotations"] = annotations
        cluster.builds.add(value)
        cluster.builds.add(build("lost"))
        pod = build_pod("gone", owner="b8")
        cluster.pods.add(pod)
        odd = build_pod("odd-too", uid="p0", owner="b7")
        odd["metadata"]["annotations"] = annotations
        cluster.pods.add(odd)
        assert await search(cluster, FakeClock()) == 0
        assert cluster.status("lost")["phase"] == "Error"
        assert ("gone-build", "p1") in cluster.deleted

    asyncio.run(main())


async def test_what_breaks_a_controller_comes_out_as_itself() -> None:
    class Broken(Cluster):
        def list_watch(self) -> object:
            raise AssertionError

    cluster = Broken()
    controller = BuildControllerFactory(
        cluster, cluster.builds, cluster.pods, clock=FakeClock()
    ).create_delete_controller()
    controller._search_forever = _breaks  # type: ignore[method-assign]  # stands for any defect
    with pytest.raises(ZeroDivisionError):
        await controller.run()


async def _breaks() -> None:
    raise ZeroDivisionError
