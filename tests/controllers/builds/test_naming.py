import pytest

from controllers.build_cluster import build, build_pod
from listwatch.controllers.builds.naming import (
    InvalidBuildError,
    _hash,
    belongs_to,
    build_name_of,
    build_pod_name,
    facts,
    short_name,
)
from listwatch.objects import Object


def test_a_pod_is_named_after_its_build() -> None:
    assert build_pod_name(Object.from_dict(build("app-1"))) == "app-1-build"


def test_a_name_of_253_characters_stays_and_a_longer_one_is_cut_with_a_hash() -> None:
    assert short_name("a" * 247, "build") == "a" * 247 + "-build"
    cut = short_name("a" * 248, "build")
    assert len(cut) == 253
    # FNV-1a of the letter a, 248 times.
    value = 0x811C9DC5
    for _ in range(248):
        value = ((value ^ 0x61) * 16777619) % 2**32
    assert cut == "a" * 238 + f"-{value:08x}-build"
    assert short_name("b" * 248, "build")[238:] != cut[238:]


def test_hashes_are_those_of_fnv_1a() -> None:
    assert _hash("a") == "e40c292c"
    assert _hash("foobar") == "bf9cf968"


def test_a_suffix_that_leaves_no_room_is_replaced_by_a_hash() -> None:
    assert short_name("foobar", "build", limit=11) == "fo-" + _hash("foobar-build")


def test_an_annotation_tells_another_pod_name() -> None:
    named = build("app-1", annotations={"openshift.io/build.pod-name": "app-1"})
    assert build_pod_name(Object.from_dict(named)) == "app-1"


def test_the_annotation_names_a_pods_build_and_else_the_older_label() -> None:
    pod = build_pod("app-1")
    pod["metadata"]["labels"]["openshift.io/build.name"] = "cut"
    assert build_name_of(Object.from_dict(pod)) == "app-1"
    del pod["metadata"]["annotations"]
    assert build_name_of(Object.from_dict(pod)) == "cut"
    del pod["metadata"]["labels"]
    assert build_name_of(Object.from_dict(pod)) == ""


@pytest.mark.parametrize(
    ("pod", "belongs"),
    [
        (build_pod("app-1", owner="b1"), True),
        (build_pod("app-1", owner="b0"), False),
        (build_pod("app-2", owner="b1"), False),
        (build_pod("app-1", owner=""), True),
        (build_pod("app-1", owner="", created="2025-12-31T23:59:59Z"), False),
    ],
)
def test_a_pod_belongs_to_the_build_of_its_owner_or_not_younger_than_itself(
    pod: dict[str, object], belongs: bool
) -> None:
    assert belongs_to(Object.from_dict(pod), Object.from_dict(build("app-1"))) is belongs


def test_a_build_without_a_status_is_new_and_wrong_types_are_an_error_that_names_it() -> None:
    value = build("app-1")
    del value["status"]
    assert facts(Object.from_dict(value)).phase == "New"
    value["status"] = {"phase": 7}
    with pytest.raises(InvalidBuildError, match="Build ci/app-1"):
        facts(Object.from_dict(value))
