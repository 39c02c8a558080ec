"""Objects are converted between the versions of a resource, all of a review or none."""

import copy
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.resources import (
    ConversionError,
    Conversions,
    ObjectMeta,
    ResourceTypeError,
    Rule,
    custom_resource_of,
    resource,
)
from listwatch.resources.conversion import typed_object
from listwatch.testing import assert_round_trips, manifests
from resources.site_versions import (
    NewPort,
    NewSpec,
    OldSpec,
    SiteV1,
    SiteV1Alpha1,
    SiteV1Beta1,
    conversions,
)

KEEPING = conversions(keep_lost=True)
LOSING = conversions(keep_lost=False)


def site(version: str = "v1alpha1", name: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"example.com/{version}",
        "kind": "Site",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": "u",
            "generation": 3,
            "labels": {"a": "b"},
            "managedFields": [{"manager": "m"}],
        },
        "spec": spec or {"host": "a"},
    }


def asked(*objects: Any, version: str = "example.com/v1") -> dict[str, Any]:
    return {"uid": "r", "desiredAPIVersion": version, "objects": list(objects)}


def test_an_object_takes_the_way_through_neighbours_and_keeps_its_metadata() -> None:
    old = site(host="a")
    before = copy.deepcopy(old)
    new = LOSING.converted_manifest(old, "v1")
    assert new == {**site("v1", hosts=["a"], ports=[])}
    assert old == before


def test_typed_objects_are_converted_too() -> None:
    old = SiteV1Alpha1(ObjectMeta(name="a", labels={"x": "y"}), OldSpec("h"))
    assert LOSING.converted(old, SiteV1) == SiteV1(
        ObjectMeta(name="a", labels={"x": "y"}), NewSpec(["h"])
    )
    with pytest.raises(ResourceTypeError, match="Other is no version of these conversions: Site"):
        LOSING.converted(Other(ObjectMeta(name="a")), SiteV1)


def test_a_version_is_its_own_conversion() -> None:
    obj = site(host="a", tier="gold", unknown=1)
    assert LOSING.converted_manifest(obj, "v1alpha1") == obj


def test_what_a_version_cannot_hold_comes_back_from_the_annotation() -> None:
    old = site(host="a", tier="gold")
    new = KEEPING.converted_manifest(old, "v1")
    assert list(new["metadata"]["annotations"]) == ["example.com/lost-fields"]
    assert KEEPING.converted_manifest(new, "v1alpha1") == old
    lost = LOSING.converted_manifest(LOSING.converted_manifest(old, "v1"), "v1alpha1")
    assert lost["spec"] == {"host": "a", "tier": "silver"}


def test_nothing_lost_leaves_no_annotation() -> None:
    assert KEEPING.converted_manifest(site(host="a"), "v1") == site("v1", hosts=["a"], ports=[])


def test_changes_made_in_another_version_win_over_what_is_kept() -> None:
    new = site("v1", hosts=["a", "b"], ports=[{"name": "x", "port": 1, "protocol": "UDP"}])
    middle = KEEPING.converted_manifest(new, "v1beta1")
    middle["spec"]["ports"] = [{"name": "y", "port": 2}, {"name": "x", "port": 3}]
    middle["spec"]["hosts"] = ["c"]
    middle["metadata"]["annotations"]["other"] = "stays"
    back = KEEPING.converted_manifest(middle, "v1")
    assert back["spec"] == {
        "hosts": ["c"],
        "ports": [
            {"name": "y", "port": 2, "protocol": "TCP"},
            {"name": "x", "port": 3, "protocol": "UDP"},
        ],
    }
    assert back["metadata"]["annotations"] == {"other": "stays"}


def test_each_version_comes_back_from_each_other_one() -> None:
    assert_round_trips(KEEPING)


OBJECTS = {cls: manifests(cls) for cls in KEEPING.types}


@given(data=st.data(), order=st.permutations(KEEPING.types))
def test_changes_survive_whatever_is_kept_of_other_versions(
    data: st.DataObject, order: list[Any]
) -> None:
    first, cls, last = order
    version, other = (
        custom_resource_of(one).resource.version
        for one in (cls, data.draw(st.sampled_from([first, last])))
    )
    # One version keeps what it can't hold of another; then all of its fields change.
    seen = KEEPING.converted_manifest(data.draw(OBJECTS[first]), version)
    changed = {**data.draw(OBJECTS[cls]), "metadata": seen["metadata"]}
    back = KEEPING.converted_manifest(KEEPING.converted_manifest(changed, other), version)
    assert typed_object(back, cls) == typed_object({**changed, "metadata": back["metadata"]}, cls)


class Tier(msgspec.Struct):
    tier: Literal["gold", "silver"] = "silver"


class Nothing(msgspec.Struct):
    pass


@resource("example.com", "v1", kind="Plan")
class PlanV1(msgspec.Struct):
    metadata: ObjectMeta
    spec: Tier


@resource("example.com", "v2", kind="Plan")
class PlanV2(msgspec.Struct):
    metadata: ObjectMeta
    spec: Nothing


def test_a_loss_names_the_versions_and_the_field() -> None:
    plans = Conversions(PlanV1, PlanV2)
    plans.convert(PlanV1, PlanV2)(lambda old: PlanV2(old.metadata, Nothing()))
    plans.convert(PlanV2, PlanV1)(lambda new: PlanV1(new.metadata, Tier()))
    with pytest.raises(AssertionError) as found:
        assert_round_trips(plans)
    assert str(found.value) == (
        'Plan v1 → v2 → v1 changes spec.tier: "gold" becomes "silver"; keep_lost=True would keep it'
    )


class Cheap(msgspec.Struct):
    tier: Annotated[Literal["gold", "silver"], Rule("self != 'gold'", message="too dear")]


@resource("example.com", "v3", kind="Plan")
class PlanV3(msgspec.Struct):
    metadata: ObjectMeta
    spec: Cheap


def test_what_the_other_version_does_not_accept_is_named() -> None:
    plans = Conversions(PlanV1, PlanV3)
    plans.convert(PlanV1, PlanV3)(lambda old: PlanV3(old.metadata, Cheap(old.spec.tier)))
    plans.convert(PlanV3, PlanV1)(lambda new: PlanV1(new.metadata, Tier(new.spec.tier)))
    with pytest.raises(AssertionError) as found:
        assert_round_trips(plans)
    assert str(found.value) == (
        'Plan v1 → v3 gives what v3 does not accept: spec.tier: Invalid value: "gold": too dear'
    )


def test_a_review_converts_all_objects() -> None:
    answer = LOSING.review(asked(site(name="a"), site("v1", name="b", hosts=["x"], ports=[])))
    assert answer["result"] == {"status": "Success"}
    names = [(one["apiVersion"], one["metadata"]["name"]) for one in answer["convertedObjects"]]
    assert names == [("example.com/v1", "a"), ("example.com/v1", "b")]
    assert LOSING.review(asked())["convertedObjects"] == []


@pytest.mark.parametrize(
    ("bad", "version", "words"),
    [
        (site("v9"), "v1", "Site default/shop of example.com/v9 is no Site of example.com/{v1a"),
        ({**site(), "kind": "Other"}, "v1", "Other default/shop of example.com/v1alpha1 is no"),
        (site(), "v9", "sites.example.com has no version 'v9', only v1alpha1, v1beta1, v1"),
        (site(host=1), "v1", "Site default/shop does not fit SiteV1Alpha1: Expected `str`, got"),
        ({}, "v1", "None of None is no Site"),
    ],
)
def test_one_bad_object_fails_the_whole_review_by_name(
    bad: dict[str, Any], version: str, words: str
) -> None:
    answer = LOSING.review(asked(site(name="good"), bad, version=f"example.com/{version}"))
    assert answer["convertedObjects"] == []
    assert answer["result"]["status"] == "Failure"
    assert answer["result"]["message"].startswith(words)
    other = LOSING.review(asked(site(), version="other.com/v1"))
    assert "has no version 'other.com/v1'" in other["result"]["message"]


class Other(msgspec.Struct):
    metadata: ObjectMeta


def failing(how: Callable[[], Any]) -> Conversions:
    sites = Conversions(SiteV1Alpha1, SiteV1)
    sites.convert(SiteV1Alpha1, SiteV1)(lambda _old: how())
    return sites


def refuse() -> SiteV1:
    raise ConversionError("gold sites can't be v1")


def break_down() -> SiteV1:
    raise RuntimeError("s3cret")


def test_a_function_may_refuse_with_its_own_words() -> None:
    answer = failing(refuse).review(asked(site()))
    assert answer["result"] == {"status": "Failure", "message": "gold sites can't be v1"}


def test_an_unexpected_failure_is_logged_and_its_text_is_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = failing(break_down).review(asked(site()))
    assert answer["result"]["message"] == (
        "converting Site default/shop to v1 failed; the webhook's log tells why"
    )
    (record,) = caplog.records
    assert record.getMessage() == "converting Site default/shop to v1, request r"
    assert "s3cret" in str(record.exc_info)


def test_a_result_of_another_type_is_a_failure() -> None:
    answer = failing(lambda: 1).review(asked(site()))
    assert answer["result"]["message"] == (
        "the conversion of Site from v1alpha1 to v1 returned int, not SiteV1"
    )


def test_a_missing_function_is_named_with_the_decorator_to_write() -> None:
    sites = Conversions(SiteV1Alpha1, SiteV1Beta1, SiteV1)
    sites.convert(SiteV1Alpha1, SiteV1Beta1)(lambda old: old)  # type: ignore[arg-type,return-value] # never called
    with pytest.raises(
        ResourceTypeError,
        match=r"Site: no function converts v1alpha1 to v1: .* convert\(SiteV1Alpha1, SiteV1\)",
    ):
        sites.check()


def test_keeping_needs_both_directions_of_each_function() -> None:
    sites = Conversions(SiteV1Alpha1, SiteV1Beta1, SiteV1, keep_lost=True)
    circle: list[tuple[Any, Any]] = [
        (SiteV1Alpha1, SiteV1Beta1),
        (SiteV1Beta1, SiteV1),
        (SiteV1, SiteV1Alpha1),
    ]
    for old, new in circle:
        sites.convert(old, new)(lambda obj: obj)
    with pytest.raises(ResourceTypeError, match=r"v1beta1 to v1alpha1: .* both directions"):
        sites.check()


def test_declarations_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ResourceTypeError, match="at least two versions"):
        Conversions(SiteV1)
    with pytest.raises(ResourceTypeError, match="Site: two types have the version v1beta1"):
        Conversions(SiteV1Beta1, SiteV1Beta1)
    with pytest.raises(ResourceTypeError, match="no versions of one resource: their kind"):
        Conversions(SiteV1, resource("example.com", "v2")(Other))
    sites = conversions(keep_lost=False)
    with pytest.raises(ResourceTypeError, match="a function converts v1alpha1 to v1beta1 already"):
        sites.convert(SiteV1Alpha1, SiteV1Beta1)(lambda old: old)  # type: ignore[arg-type,return-value] # refused
    with pytest.raises(ResourceTypeError, match="SiteV1 needs no conversion to itself"):
        sites.convert(SiteV1, SiteV1)


def test_an_annotation_that_no_conversion_wrote_is_named() -> None:
    obj = site()
    obj["metadata"]["annotations"] = {"example.com/lost-fields": "[]"}
    with pytest.raises(ConversionError, match="lost-fields of Site default/shop was not written"):
        KEEPING.converted_manifest(obj, "v1")


def test_what_does_not_fit_into_annotations_is_refused_by_size() -> None:
    ports = [{"name": f"p{n}", "port": n, "protocol": "UDP"} for n in range(1, 9000)]
    with pytest.raises(ConversionError, match=r"Site default/shop does not fit .* of 262144 at"):
        KEEPING.converted_manifest(site("v1", hosts=["a"], ports=ports), "v1beta1")


def test_unset_fields_stay_unset() -> None:
    new = site("v1", hosts=["a"], ports=[])
    assert "owner" not in new["spec"]
    back = LOSING.converted_manifest(LOSING.converted_manifest(new, "v1beta1"), "v1")
    assert back == new
    assert NewPort("a", 1).protocol == "TCP"
