"""Each program in examples/seed does what the page says."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED = ROOT / "examples" / "seed"
DELETED = "BuildPodDeleted: The pod for this build was deleted before the build completed."
PRINTED = {
    "build_delete_controller": [
        "the pod of the deleted build is gone",
        "the pod of the new build stays",
    ],
    "build_pod_delete_controller": [f"lost-before {DELETED}", f"loses-now {DELETED}"],
    "event_queue": ["Added a at 2", "Deleted a at 2"],
    "event_queue_for_store": [
        "Sync a; known: ['a']",
        "Sync b; known: ['a', 'b']",
        "Updated a; known: ['a', 'b']",
        "Deleted b; known: ['a']",
    ],
    "fake_source": ["a-hello", "b-controller", "c-framework"],
    "indexer_informer": [
        "added shop/a",
        "added shop/b",
        "updated shop/a: n1 -> n2",
        "on n1: ['shop/b']",
        "deleted shop/b",
    ],
    "observe": ["['a', 'b']"],
    "service_controller": [
        "finalizers: service.kubernetes.io/load-balancer-cleanup",
        "answer: backend hello",
        "deleted; answer: none",
    ],
    "shared_index_informer": [
        "first: a was there",
        "first: b was there",
        "first: b moved from n1 to n2",
        "first: shop/a went",
        "on n2: ['b']",
        "second: b was there",
    ],
    "shared_informer": [
        "store: ['shop/a']",
        "a listener who comes later hears of what is there: shop/a",
        "and of what happens: shop/a is now on n1",
    ],
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_it_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SEED / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == PRINTED[name]


def test_every_program_is_run_here_and_named_on_the_page() -> None:
    programs = {path.stem for path in SEED.glob("*.py")}
    page = (ROOT / "docs" / "seed.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\(\.\./examples/seed/(\w+)\.py\)", page))
    assert programs == PRINTED.keys() == named


def test_what_the_page_says_is_where_is_there() -> None:
    page = (ROOT / "docs" / "seed.md").read_text(encoding="utf-8")
    modules = set(re.findall(r"`(listwatch(?:\.\w+)+)`", page))
    assert len(modules) > 10
    for module in modules:
        path = ROOT / "src" / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module
