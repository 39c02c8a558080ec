"""The types, the rules and the conversions, without a server."""

import pytest

from controller import status, wanted
from listwatch.resources import ObjectMeta, check
from listwatch.testing import assert_round_trips
from website_types import Website, WebsiteSpec, WebsiteStatus, conversions


def website(*, image: str = "nginx:1", replicas: int = 1) -> Website:
    meta = ObjectMeta(name="shop", namespace="default", uid="1", generation=2)
    return Website(meta, WebsiteSpec(image, replicas))


def test_a_deployment_has_the_image_and_the_replicas_of_its_website() -> None:
    deployment = wanted(website(replicas=3))
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nginx:1"
    (owner,) = deployment["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Website", "shop")


@pytest.mark.parametrize(("ready", "told"), [(1, ("False", "Waiting")), (2, ("True", "AllReady"))])
def test_a_website_is_ready_when_all_its_replicas_are(ready: int, told: tuple[str, str]) -> None:
    found = status(website(replicas=2), ready, now="2030-01-01T00:00:00Z")
    (condition,) = found.conditions
    assert (condition["status"], condition["reason"]) == told
    assert (found.ready_replicas, condition["observedGeneration"]) == (ready, 2)


def test_the_time_of_a_condition_changes_only_with_its_status() -> None:
    before = website(replicas=2)
    before.status = status(before, 0, now="2030-01-01T00:00:00Z")
    after: WebsiteStatus = status(before, 1, now="2030-01-02T00:00:00Z")
    assert after.conditions[0]["lastTransitionTime"] == "2030-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (website(replicas=-1), "spec.replicas: Invalid value: -1"),
        (website(image=""), "spec.image: Invalid value"),
        (website(image="nginx:latest"), "must not be the latest of anything"),
    ],
)
def test_a_website_that_can_not_be_is_refused_by_its_rules(refused: Website, words: str) -> None:
    (problem,) = check(refused)
    assert words in str(problem)


def test_no_version_loses_what_another_one_holds() -> None:
    assert_round_trips(conversions)
