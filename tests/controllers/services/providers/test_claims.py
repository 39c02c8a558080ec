"""Addresses that services ask for, and which services may share one."""

from typing import Any

import pytest

from controllers.service_cluster import annotated
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.claims import (
    ADDRESS_POOL,
    ADDRESSES,
    SHARE_ADDRESS,
    Claim,
)
from listwatch.testing.load_balancer_conformance import make_service

V4, V6 = "IPv4", "IPv6"


def wishes(annotations: dict[str, str] | None = None, **spec: Any) -> list[tuple[str, str, bool]]:
    claim = Claim.of(annotated(make_service(ports=[], **spec), annotations or {}))
    return [(w.family, str(w.address or ""), w.required) for w in claim.wishes]


@pytest.mark.parametrize(
    ("policy", "families", "expected"),
    [
        ("", [], [("", "", True)]),
        ("", [V4], [(V4, "", True)]),
        ("SingleStack", [V6], [(V6, "", True)]),
        ("SingleStack", [V6, V4], [(V6, "", True)]),
        ("PreferDualStack", [V4], [(V4, "", True)]),
        ("PreferDualStack", [V6, V4], [(V6, "", False), (V4, "", False)]),
        ("RequireDualStack", [V6, V4], [(V6, "", True), (V4, "", True)]),
        ("RequireDualStack", [V4], [(V4, "", True), (V6, "", True)]),
    ],
)
def test_families_and_policy_decide_what_is_given(
    policy: str, families: list[str], expected: list[tuple[str, str, bool]]
) -> None:
    assert wishes(ipFamilies=families, ipFamilyPolicy=policy) == expected


def test_addresses_that_are_asked_for_take_the_place_of_their_family() -> None:
    both: dict[str, Any] = {"ipFamilies": [V4, V6], "ipFamilyPolicy": "RequireDualStack"}
    assert wishes(**both, loadBalancerIP="2001:db8::7") == [
        (V4, "", True),
        (V6, "2001:db8::7", True),
    ]
    several = {ADDRESSES: "192.0.2.1, 192.0.2.2,2001:db8::1"}
    assert wishes(several, **both) == [
        (V4, "192.0.2.1", True),
        (V4, "192.0.2.2", True),
        (V6, "2001:db8::1", True),
    ]
    assert wishes({ADDRESSES: "192.0.2.1"}, loadBalancerIP="192.0.2.9") == [(V4, "192.0.2.1", True)]


@pytest.mark.parametrize(
    ("annotations", "spec", "words"),
    [
        ({ADDRESSES: "192.0.2.1,here"}, {}, f"annotation {ADDRESSES}: 'here' is not an IP"),
        ({}, {"loadBalancerIP": "here"}, "loadBalancerIP: 'here' is not an IP address"),
        ({ADDRESSES: "::1"}, {"ipFamilies": [V4]}, "::1 is IPv6, and the service is IPv4"),
        ({}, {"ipFamilies": [V6], "loadBalancerIP": "192.0.2.1"}, "192.0.2.1 is IPv4"),
    ],
)
def test_what_can_not_be_asked_for_is_told(
    annotations: dict[str, str], spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(ProviderError, match=words):
        wishes(annotations, **spec)


def sharing(name: str, port: int, key: str = "k", protocol: str = "TCP", **spec: Any) -> Claim:
    ports = [{"port": port, "protocol": protocol}]
    service = annotated(make_service(name, ports=ports, **spec), {SHARE_ADDRESS: key})
    return Claim.of(service)


LOCAL = {"externalTrafficPolicy": "Local"}


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (sharing("a", 80), sharing("b", 81), True),
        (sharing("a", 53), sharing("b", 53, protocol="UDP"), True),
        (sharing("a", 80), sharing("b", 80), False),
        (sharing("a", 80), sharing("b", 81, key="other"), False),
        (sharing("a", 80, key=""), sharing("b", 81, key=""), False),
        (sharing("a", 80, **LOCAL), sharing("b", 81), False),
        (sharing("a", 80, **LOCAL, selector={"x": "1"}), sharing("b", 81, **LOCAL), False),
        (
            sharing("a", 80, **LOCAL, selector={"x": "1", "y": "2"}),
            sharing("b", 81, **LOCAL, selector={"y": "2", "x": "1"}),
            True,
        ),
    ],
)
def test_an_address_is_shared_by_metallbs_rule(one: Claim, other: Claim, may: bool) -> None:
    assert one.may_share(other) is may
    assert other.may_share(one) is may


def test_the_pool_is_chosen_by_an_annotation() -> None:
    service = annotated(make_service(ports=[]), {ADDRESS_POOL: " home "})
    assert Claim.of(service).pool == "home"
