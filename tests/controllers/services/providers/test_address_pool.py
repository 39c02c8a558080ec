from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.address_pool import AddressPool


def take(pool: AddressPool, owner: str, wanted: str = "", before: str = "") -> str:
    address = next(pool.candidates(owner, wanted, before))
    pool.take(owner, address)
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
    pool.release(first)
    assert take(pool, "c") == first
    assert len(pool) == 2


def test_common_loopback_addresses_are_given_only_when_asked_for() -> None:
    pool = AddressPool(["127.0.0.0/23"])
    assert all(a.startswith("127.0.1.") for a in islice(pool.candidates("a"), 200))
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
            pool.release(held.pop(owner))
        assert len(set(held.values())) == len(held) == len(pool)
