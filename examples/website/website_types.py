"""The versions of a Website, and the conversions between them."""

from typing import Annotated

import msgspec

from listwatch.resources import Column, Conditions, Conversions, ObjectMeta, Rule, resource

Image = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=500, description="What to run."),
    Rule("!self.endsWith(':latest')", message="must not be the latest of anything"),
]
Count = Annotated[int, msgspec.Meta(ge=0, le=100, description="How many pods.")]


class WebsiteSpec(msgspec.Struct):
    """What a website is to be."""

    image: Image
    replicas: Count = 1


class WebsiteStatus(msgspec.Struct, rename="camel"):
    """How far the controller has come."""

    ready_replicas: int = 0
    conditions: Conditions = []


@resource(
    "example.com",
    "v1",
    plural="websites",
    columns=[
        Column(name="Image", json_path=".spec.image"),
        Column(name="Ready", json_path=".status.readyReplicas", type="integer"),
    ],
)
class Website(msgspec.Struct):
    """A website."""

    metadata: ObjectMeta
    spec: WebsiteSpec
    status: WebsiteStatus | None = None


# --- An earlier version --------------------------------------------------------------------------
# Its objects are still read and written by those who know it. Without such people delete it, with
# the conversions. A later version gets a class and two functions like these.


class WebsiteSpecV1Alpha1(msgspec.Struct):
    """What a website was to be in v1alpha1."""

    image: Image
    count: Count = 1


@resource("example.com", "v1alpha1", kind="Website", plural="websites")
class WebsiteV1Alpha1(msgspec.Struct):
    """A website."""

    metadata: ObjectMeta
    spec: WebsiteSpecV1Alpha1
    status: WebsiteStatus | None = None


conversions = Conversions(WebsiteV1Alpha1, Website)


@conversions.convert(WebsiteV1Alpha1, Website)
def to_v1(old: WebsiteV1Alpha1) -> Website:
    """Convert v1alpha1 to v1, in which the count has another name."""
    return Website(old.metadata, WebsiteSpec(old.spec.image, old.spec.count), old.status)


@conversions.convert(Website, WebsiteV1Alpha1)
def to_v1alpha1(new: Website) -> WebsiteV1Alpha1:
    """Convert v1 to v1alpha1."""
    spec = WebsiteSpecV1Alpha1(new.spec.image, new.spec.replicas)
    return WebsiteV1Alpha1(new.metadata, spec, new.status)
