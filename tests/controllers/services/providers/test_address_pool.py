import ipaddress
import random
from itertools import combinations, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.service_cluster import annotated, service
from listwatch.controllers.services.provider import AddressTakenError, ProviderError
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.claims import SHARE_ADDRESS, Claim, Wish
from listwatch.controllers.services.providers.pools import Pool, PoolError
from listwatch.controllers.services.service import Service
from listwatch.objects import Object


def take(pool: AddressPool, owner: str, wanted: str = "", before: str = "") -> str:
    claim = Claim(owner)
    wish = Wish(address=ipaddress.ip_address(wanted) if wanted else None)
    address = next(pool.candidates(claim, wish, [before] if before else []))
    pool.take(claim, address)
    return address


def test_an_owner_gets_the_same_address_in_every_life_of_the_pool() -> None:
    assert take(AddressPool(), "a") == take(AddressPool(), "a")
    assert take(AddressPool(), "a") != take(AddressPool(), "b")


def test_the_address_from_before_is_given_again_if_it_can_be() -> None:
    pool = AddressPool(["192.0.2.0/24"])
    assert take(pool, "a", before="192.0.2.77") == "192.0.2.77"
    assert take(pool, "b", before="192.0.2.77") != "192.0.2.77"
    assert take(pool, "c", before="203.0.113.1").startswith("192.0.2.")
    assert take(pool, "d", before="no-address").startswith("192.0.2.")


def test_a_wanted_address_is_given_or_refused_with_the_reason() -> None:
    pool = AddressPool(["192.0.2.0/24"])
    assert take(pool, "a", wanted="192.0.2.5") == "192.0.2.5"
    assert take(pool, "a", wanted="192.0.2.5") == "192.0.2.5"
    with pytest.raises(ProviderError, match="in use by another"):
        take(pool, "b", wanted="192.0.2.5")
    with pytest.raises(ProviderError, match=r"not in the provider's range 192\.0\.2\.0/24"):
        take(pool, "b", wanted="203.0.113.1")


def test_a_full_pool_says_what_would_help_and_takes_addresses_back() -> None:
    pool = AddressPool(["192.0.2.0/30"])
    first = take(pool, "a")
    assert {first, take(pool, "b")} == {"192.0.2.1", "192.0.2.2"}
    with pytest.raises(ProviderError, match="give the provider a larger range"):
        take(pool, "c")
    pool.release("a", first)
    assert take(pool, "c") == first
    assert len(pool) == 2


def test_common_loopback_addresses_are_given_only_when_asked_for() -> None:
    pool = AddressPool(["127.0.0.0/23"])
    assert all(a.startswith("127.0.1.") for a in islice(pool.candidates(Claim("a"), Wish()), 200))
    assert take(pool, "b", wanted="127.0.0.2") == "127.0.0.2"


def test_single_addresses_and_ipv6_are_networks_too() -> None:
    assert take(AddressPool(["192.0.2.7/32"]), "a") == "192.0.2.7"
    assert take(AddressPool(["2001:db8::/64"]), "a").startswith("2001:db8::")


@pytest.mark.parametrize("networks", [[], ["nonsense"], ["192.0.2.0/99"]])
def test_what_is_no_network_is_refused(networks: list[str]) -> None:
    with pytest.raises(ValueError, match=r"network|prefix|address"):
        AddressPool(networks)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_no_two_owners_ever_have_one_address(steps: list[tuple[bool, int]]) -> None:
    pool = AddressPool(["192.0.2.0/27"])
    held: dict[int, str] = {}
    for takes, owner in steps:
        if takes and owner not in held:
            held[owner] = take(pool, str(owner))
        elif not takes and owner in held:
            pool.release(str(owner), held.pop(owner))
        assert len(set(held.values())) == len(held) == len(pool)


def claim(uid: str, **more: Any) -> Claim:
    return Claim(uid, key=f"default/{uid}", **more)


def get(pool: AddressPool, claim: Claim, family: str = "") -> str:
    address = next(pool.candidates(claim, Wish(family)))
    pool.take(claim, address)
    return address


def test_special_pools_come_first_and_others_only_by_name() -> None:
    pool = AddressPool(
        pools=[
            Pool.of("any", ["192.0.2.1-192.0.2.9"]),
            Pool.of("named", ["192.0.2.11"], auto_assign=False),
            Pool.of("shop", ["192.0.2.21"], namespaces=["shop"]),
        ]
    )
    assert get(pool, claim("a", namespace="shop")) == "192.0.2.21"
    assert get(pool, claim("b", namespace="shop")).startswith("192.0.2.")
    assert get(pool, claim("c", pool="named")) == "192.0.2.11"
    wish = Wish(address=ipaddress.ip_address("192.0.2.11"))
    with pytest.raises(AddressTakenError, match="in use by another"):
        next(pool.candidates(claim("d"), wish))
    pool.release("c", "192.0.2.11")
    assert list(pool.candidates(claim("d"), wish)) == ["192.0.2.11"]


@pytest.mark.parametrize(
    ("asked", "wish", "words"),
    [
        ({"pool": "none"}, Wish(), "there is no address pool none: the pools are shop, closed, v4"),
        ({"pool": "shop"}, Wish(), "shop is for other namespaces, labels or classes"),
        ({}, Wish("IPv6"), "no IPv6 address is assigned automatically from closed, v4"),
        (
            {},
            Wish(address=ipaddress.ip_address("192.0.2.21")),
            "192.0.2.21 is of an address pool for other services",
        ),
        (
            {"pool": "v4"},
            Wish(address=ipaddress.ip_address("2001:db8::1")),
            "is of an address pool for other services",
        ),
        ({}, Wish(address=ipaddress.ip_address("203.0.113.1")), "not in the provider's range"),
    ],
)
def test_what_no_pool_gives_is_told_with_the_remedy(
    asked: dict[str, Any], wish: Wish, words: str
) -> None:
    pool = AddressPool(
        pools=[
            Pool.of("closed", ["2001:db8::1"], auto_assign=False),
            Pool.of("shop", ["192.0.2.21"], namespaces=["shop"]),
            Pool.of("v4", ["192.0.2.1"]),
        ]
    )
    with pytest.raises(ProviderError, match=words) as told:
        next(pool.candidates(claim("a", **asked), wish))
    assert not isinstance(told.value, AddressTakenError)


def sharing(uid: str, port: int, key: str = "k") -> Claim:
    return claim(uid, sharing=key, ports=frozenset({("TCP", port)}))


def test_services_that_share_come_together_and_others_never() -> None:
    pool = AddressPool(["192.0.2.0/24"])
    first = get(pool, sharing("a", 80))
    assert get(pool, sharing("b", 81)) == first
    assert get(pool, sharing("c", 81)) != first
    assert get(pool, sharing("d", 82, key="other")) != first
    assert get(pool, claim("e")) != first
    assert not pool.may_keep(sharing("b", 80), first)
    assert pool.may_keep(sharing("b", 83), first)
    pool.release("a", first)
    assert pool.may_keep(sharing("b", 80), first)
    pool.release("b", first)
    assert pool.used(pool.pools[0]) == len(pool) == 3


def test_what_no_longer_fits_is_kept_and_reported_until_it_asks_for_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = AddressPool(["192.0.2.1"])
    a = claim("a")
    assert get(pool, a) == "192.0.2.1"
    pool.set_pools([Pool.of("new", ["192.0.2.9"])])
    assert caplog.messages == [
        "service default/a keeps 192.0.2.1, which no address pool would give it now"
    ]
    assert pool.may_keep(a, "192.0.2.1")
    assert not pool.may_keep(claim("a", pool="new"), "192.0.2.1")
    with pytest.raises(PoolError):
        pool.set_pools([])
    assert [one.name for one in pool.pools] == ["new"]


def told(uid: str, age: str, port: int, key: str) -> Service:
    value = service(uid, uid=uid, ports=[{"port": port}])
    value["metadata"]["creationTimestamp"] = age
    return annotated(Service.of(Object.from_dict(value)), {SHARE_ADDRESS: key})


def test_the_status_of_others_counts_by_age_and_by_the_rule_of_sharing() -> None:
    pool = AddressPool(["192.0.2.1"])
    old, young = told("old", "2001", 80, "k"), told("young", "2002", 81, "")
    pool.use_holders(lambda _address: [old, young])
    assert list(islice(pool.candidates(Claim.of(old), Wish()), 1)) == ["192.0.2.1"]
    for other in (Claim.of(young), sharing("new", 82)):
        with pytest.raises(AddressTakenError):
            next(pool.candidates(other, Wish()))
    pool.use_holders(lambda _address: [old])
    assert get(pool, sharing("new", 82)) == "192.0.2.1"


@given(st.integers(0, 2**32))
def test_an_address_is_only_ever_with_those_who_may_share_it(seed: int) -> None:
    chance = random.Random(seed)
    pools = [
        Pool.of("a", ["192.0.2.1-192.0.2.3", "2001:db8::1-2001:db8::2"]),
        Pool.of("b", ["192.0.2.8"], namespaces=["shop"]),
        Pool.of("c", ["192.0.2.9", "2001:db8::9"], auto_assign=False),
    ]
    pool = AddressPool(pools=pools)
    held: dict[str, tuple[Claim, str]] = {}
    for _ in range(60):
        uid = chance.choice("uvwxyz")
        if uid in held and chance.random() < 0.4:
            pool.release(uid, held.pop(uid)[1])
        asked = claim(
            uid,
            namespace=chance.choice(["shop", "other"]),
            pool=chance.choice(["", "", "a", "c"]),
            sharing=chance.choice(["", "k", "k"]),
            ports=frozenset({("TCP", chance.randrange(3))}),
            backends=chance.choice(["", "", "x"]),
        )
        had = held.get(uid)
        if had is not None and pool.may_keep(asked, had[1]):
            address = had[1]
        else:
            try:
                address = next(pool.candidates(asked, Wish(chance.choice(["", "IPv4", "IPv6"]))))
            except ProviderError:
                continue
        pool.take(asked, address)
        pool.keep(asked, [address])
        held[uid] = asked, address
        together: dict[str, list[Claim]] = {}
        for one, at in held.values():
            together.setdefault(at, []).append(one)
        for claims in together.values():
            assert all(a.may_share(b) for a, b in combinations(claims, 2))
        assert len(pool) == len(together)
        assert not asked.pool or any(
            ipaddress.ip_address(address) in one for one in pools if one.name == asked.pool
        )
