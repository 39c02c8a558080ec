"""Configuration of all tests."""

import asyncio
import importlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

import components

#: The event loop of asynchronous tests: a module with `new_event_loop`, such as "uvloop"; by
#: default asyncio's.
TEST_LOOP = os.environ.get("LISTWATCH_TEST_LOOP", "")

# A shell starts its background jobs with SIGINT ignored, and nohup its program with SIGHUP. Every
# program that a test starts and signals would inherit that. Our own handler is not inherited: those
# programs get the default.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler)

# No test sets its number of examples: `make test` tries the same few each time, `make proof` many
# different ones. A failing example is printed so that it can be repeated.
# How long an example takes says more about the machine than about the code.
ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("samples", ANY_SPEED, max_examples=25, derandomize=True)
settings.register_profile("proof", ANY_SPEED, max_examples=500, print_blob=True)
settings.load_profile("samples")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    for line in (
        "proof: takes long, or proves what others sample; run by `make proof`, or by name",
        "property: runs on generated examples (set by conftest.py); more of them in `make proof`",
        "needs(*programs): needs real programs, see tests/components.py",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests to `make proof`, unless marks, a file or a test are selected."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.property)
    if config.option.markexpr or not all(Path(argument).is_dir() for argument in config.args):
        return
    long = [item for item in items if item.get_closest_marker("proof")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("proof")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs are missing; fail where all of them must be present."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if components.find(name) is None:
                lacking = f"needs {name}: {components.REMEDIES[name]}"
                if os.environ.get("CI"):
                    pytest.fail(lacking, pytrace=False)
                pytest.skip(lacking)


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Restore logging: commands configure it for their process, which other tests share."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in list(root.handlers):
        if handler not in handlers and not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)


if TEST_LOOP:

    def pytest_asyncio_loop_factories(
        config: pytest.Config, item: pytest.Item
    ) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
        """Run each asynchronous test in the event loop of `LISTWATCH_TEST_LOOP`."""
        del config, item
        return {TEST_LOOP: importlib.import_module(TEST_LOOP).new_event_loop}
