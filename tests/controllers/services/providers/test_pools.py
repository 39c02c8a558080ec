"""Address pools: ranges, rules, and the configuration file."""

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.controllers.services.providers.claims import Claim, Wish
from listwatch.controllers.services.providers.pool_file import LOOK_SECONDS, PoolFile
from listwatch.controllers.services.providers.pools import (
    Pool,
    PoolError,
    Range,
    check_apart,
    load_pools,
    parse_pools,
)
from listwatch.testing.waiting import eventually


@pytest.mark.parametrize(
    ("text", "first", "last", "size"),
    [
        ("192.0.2.0/30", "192.0.2.1", "192.0.2.2", 2),
        ("192.0.2.9/31", "192.0.2.8", "192.0.2.9", 2),
        ("192.0.2.7", "192.0.2.7", "192.0.2.7", 1),
        ("192.0.2.0 - 192.0.2.255", "192.0.2.0", "192.0.2.255", 256),
        ("2001:db8::/126", "2001:db8::1", "2001:db8::2", 2),
        ("2001:db8::a-2001:db8::f", "2001:db8::a", "2001:db8::f", 6),
    ],
)
def test_a_range_has_all_addresses_of_hosts(text: str, first: str, last: str, size: int) -> None:
    found = Range.parse(text)
    assert (str(found.first), str(found.last), found.size) == (first, last, size)
    assert found.first in found
    assert found.last + 1 not in found
    assert len(set(found.starting_at(3, 1000))) == size


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "Expected `object`"),
        ({}, "missing required field `pools`"),
        ({"pools": []}, "give the address pool a network"),
        ({"pools": [{"name": "a", "addresses": []}]}, "address pool a: give it a network"),
        ({"pools": [{"name": "a", "addresses": ["x"]}]}, "address pool a: 'x' is not a network"),
        (
            {"pools": [{"name": "a", "addresses": ["192.0.2.9-192.0.2.1"]}]},
            "last address is not after",
        ),
        ({"pools": [{"name": "a", "addresses": ["192.0.2.1-::1"]}]}, "is not a range"),
        ({"pools": [{"name": "a", "addresses": ["::1"], "serviceSelector": "=="}]}, "pool a: "),
        ({"pools": [{"name": "a", "addresses": ["::1"], "autoAsign": True}]}, "autoAsign"),
        (
            {"pools": [{"name": "a", "addresses": ["::1"]}, {"name": "a", "addresses": ["::2"]}]},
            "two address pools are named 'a'",
        ),
        (
            {
                "pools": [
                    {"name": "a", "addresses": ["192.0.2.0/24"]},
                    {"name": "b", "addresses": ["192.0.2.9"]},
                ]
            },
            "pools a and b have addresses in common",
        ),
    ],
)
def test_what_describes_no_pools_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(PoolError, match=words):
        parse_pools(value)


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 30)), min_size=1
    ).filter(lambda ranges: {name for name, *_ in ranges} == {"a", "b"})
)
@hypothesis.example([("a", 1, 30), ("a", 5, 6), ("b", 10, 12)])
def test_pools_with_an_address_in_common_are_refused(ranges: list[tuple[str, int, int]]) -> None:
    texts: dict[str, list[str]] = {"a": [], "b": []}
    numbers: dict[str, set[int]] = {"a": set(), "b": set()}
    for name, *ends in ranges:
        first, last = sorted(ends)
        texts[name].append(f"192.0.2.{first}-192.0.2.{last}")
        numbers[name].update(range(first, last + 1))
    pools = [Pool.of(name, addresses) for name, addresses in texts.items()]
    if numbers["a"] & numbers["b"]:
        with pytest.raises(PoolError, match="have addresses in common"):
            check_apart(pools)
    else:
        check_apart(pools)


def test_text_that_is_no_yaml_is_refused() -> None:
    for text in (b"pools: [", b"\xff\xfe\xff"):
        with pytest.raises(PoolError):
            load_pools(text)


def test_a_pool_serves_namespaces_labels_and_classes_that_it_names() -> None:
    rules = Pool.of(
        "a",
        ["192.0.2.1"],
        namespaces=["shop"],
        service_selector="tier in (front, edge)",
        load_balancer_classes=["example.com/lb"],
    )
    good = Claim("u", "", "shop", {"tier": "edge"}, "example.com/lb")
    assert rules.serves(good)
    for claim in (
        Claim("u", "", "other", {"tier": "edge"}, "example.com/lb"),
        Claim("u", "", "shop", {"tier": "back"}, "example.com/lb"),
        Claim("u", "", "shop", {"tier": "edge"}, None),
    ):
        assert not rules.serves(claim)
    assert Pool.of("b", ["192.0.2.1"]).serves(good)


def given(file: PoolFile) -> str:
    return next(file.pool.candidates(Claim("u"), Wish()))


def test_a_file_that_can_not_be_used_at_the_start_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    with pytest.raises(PoolError, match=f"^{path}: No such file"):
        PoolFile(path)
    path.write_text("pools: no")
    with pytest.raises(PoolError, match=f"^{path}: address pools: "):
        PoolFile(path)


async def test_a_file_is_read_again_when_it_changes_and_a_wrong_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("pools: [{name: a, addresses: [192.0.2.1]}]")
    file, clock, changes = PoolFile(path), FakeClock(), list[int]()
    following = asyncio.ensure_future(file.follow(lambda: changes.append(1), clock))
    await clock.settle()

    async def look() -> None:
        """Let it check the file, which a thread reads."""
        await clock.advance(LOOK_SECONDS)
        await eventually(lambda: clock.next_timer is not None)

    await look()
    assert changes == []
    path.write_text("pools: [{name: a, addresses: [nonsense]}]")
    for _ in range(3):
        await look()
    assert (given(file), changes) == ("192.0.2.1", [])
    path.unlink()
    await look()
    path.write_text("pools: [{name: a, addresses: [192.0.2.2]}]")
    await look()
    assert (given(file), changes) == ("192.0.2.2", [1])
    told = [r.getMessage() for r in caplog.records if "stay as they were" in r.getMessage()]
    assert [("nonsense" in line, "No such file" in line) for line in told] == [
        (True, False),
        (False, True),
    ]
    following.cancel()
    await asyncio.wait({following})


def test_ipv6_pools_are_as_large_as_they_are() -> None:
    assert Pool.of("a", ["2001:db8::/64", "192.0.2.1"]).size == 2**64 - 2 + 1
    assert ipaddress.ip_address("2001:db8::5") in Pool.of("a", ["2001:db8::/64"])
