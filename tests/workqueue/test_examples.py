import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "event_queue": [
        "Sync shop/cart at 1",
        "Sync shop/till at 2",
        "consumed a list of 2",
        "Updated shop/cart at 5",
        "Deleted shop/till at 2",
    ],
    "metrics": [
        'workqueue_depth{name="pods",priority=""} 2.0',
        'workqueue_adds_total{name="pods"} 3.0',
    ],
    "priority_queue": [
        "listed-2 at 10",
        "changed at 0",
        "listed-0 at -100",
        "listed-1 at -100",
    ],
    "retry_controller": [
        "shop/cart: ['Added', 'Updated']",
        "bank/safe: ['Added']",
        "shop/cart: ['Added', 'Updated']",
        "RetryControllerStatistics(handled=2, failed=1, retried=1, given_up=0)",
    ],
    "threads": ["20 items"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / f"examples/queues/{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == EXAMPLES[name]


def test_the_work_queue_example_ends_with_everything_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(ROOT / "examples/queues/work_queue.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["shop/cart is done", "3 retries"]
    # The place of the third depends on the machine's speed.
    assert sorted(lines[:-2]) == [
        "bank/door is done",
        "bank/safe is done",
        "shop/cart failed: no answer",
        "shop/cart failed: no answer",
        "shop/till is done",
    ]


def test_the_documentation_names_every_example_and_no_other() -> None:
    page = (ROOT / "docs/queues.md").read_text(encoding="utf-8")
    linked = {part.split(".py)")[0] for part in page.split("../examples/queues/")[1:]}
    assert linked == {path.stem for path in (ROOT / "examples/queues").glob("*.py")}
