"""Three versions of a resource, of which none can hold what the others can."""

from typing import Annotated, Literal

import msgspec

from listwatch.resources import Conversions, ListMap, ObjectMeta, resource


class OldSpec(msgspec.Struct):
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
    tier: Literal["gold", "silver"] = "silver"


@resource("example.com", "v1alpha1", kind="Site")
class SiteV1Alpha1(msgspec.Struct):
    metadata: ObjectMeta
    spec: OldSpec


class Port(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=9)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class MiddleSpec(msgspec.Struct):
    hosts: Annotated[list[Annotated[str, msgspec.Meta(max_length=20)]], msgspec.Meta(min_length=1)]
    ports: Annotated[list[Port], ListMap("name")] = []


class Status(msgspec.Struct):
    ready: int = 0


@resource("example.com", "v1beta1", kind="Site")
class SiteV1Beta1(msgspec.Struct):
    metadata: ObjectMeta
    spec: MiddleSpec
    status: Status | None = None


class NewPort(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=9)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    protocol: Literal["TCP", "UDP"] = "TCP"


class NewSpec(msgspec.Struct):
    hosts: Annotated[list[Annotated[str, msgspec.Meta(max_length=20)]], msgspec.Meta(min_length=1)]
    ports: Annotated[list[NewPort], ListMap("name")] = []
    owner: str | None = None


@resource("example.com", "v1", kind="Site", storage=True)
class SiteV1(msgspec.Struct):
    metadata: ObjectMeta
    spec: NewSpec
    status: Status | None = None


def conversions(*, keep_lost: bool) -> Conversions:
    """Return a chain of conversions."""
    sites = Conversions(SiteV1Alpha1, SiteV1Beta1, SiteV1, keep_lost=keep_lost)

    @sites.convert(SiteV1Alpha1, SiteV1Beta1)
    def to_beta(old: SiteV1Alpha1) -> SiteV1Beta1:
        return SiteV1Beta1(old.metadata, MiddleSpec([old.spec.host]))

    @sites.convert(SiteV1Beta1, SiteV1Alpha1)
    def to_alpha(new: SiteV1Beta1) -> SiteV1Alpha1:
        return SiteV1Alpha1(ObjectMeta(), OldSpec(new.spec.hosts[0] or "none"))

    @sites.convert(SiteV1Beta1, SiteV1)
    def to_v1(old: SiteV1Beta1) -> SiteV1:
        ports = [NewPort(one.name, one.port) for one in old.spec.ports]
        return SiteV1(ObjectMeta(name="ignored"), NewSpec(old.spec.hosts, ports), old.status)

    @sites.convert(SiteV1, SiteV1Beta1)
    def from_v1(new: SiteV1) -> SiteV1Beta1:
        ports = [Port(one.name, one.port) for one in new.spec.ports]
        return SiteV1Beta1(new.metadata, MiddleSpec(new.spec.hosts, ports), new.status)

    return sites
