"""Fixtures to test programs that use an API server; pytest loads them automatically.

Imports nothing heavier than pytest before a fixture is used.
"""

import contextlib
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator

    from listwatch.apiserver.access.asked_rights import AskedRight
    from listwatch.client.client import Client
    from listwatch.simulation.report import Report
    from listwatch.testing.api_server import APIServer
    from listwatch.testing.webhook_server import WebhookServer

#: As in `listwatch.cache.mutation_detector`, which is not imported for this.
_MUTATION_DETECTOR: Final = "KUBE_CACHE_MUTATION_DETECTOR"
_MARKER: Final = (
    "apiserver(subprocess=False, data=None, tokens='', controllers=True, workloads=False, "
    "seed=None, rbac=None): how the fixture `apiserver` runs its server, see "
    "listwatch.testing.APIServer"
)
_RECORDED: Final = "recorded-rbac.yaml"
#: What each test's server was asked for; in a worker of pytest-xdist, of this worker's tests.
_ASKED: Final = pytest.StashKey[list[dict[str, Any]]]()
_OUTPUT: Final = "listwatch_asked_rights"

_SIMULATION: Final = (
    "simulation(**options): options of `listwatch.simulation.simulate` for the fixture `simulate`"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `listwatch_mutation_detector` to the project's configuration, and two options."""
    group = parser.getgroup("listwatch")
    group.addoption(
        "--simulate",
        metavar="DURATION",
        help="how long the fixture `simulate` searches, such as 10s; by default as its test says, "
        "or 2s",
    )
    group.addoption(
        "--replay",
        metavar="TOKEN",
        default="",
        help="let the fixture `simulate` run only this world; select the test with -k",
    )
    parser.addini(
        "listwatch_mutation_detector",
        "let informers detect handlers that change shared objects (default: false)",
        type="bool",
        default=False,
    )
    parser.getgroup("listwatch").addoption(
        "--record-rbac",
        nargs="?",
        const=_RECORDED,
        default=None,
        metavar="FILE",
        help="write the roles that programs need for what they asked the fixture `apiserver` for "
        f"(default FILE: {_RECORDED})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and enable the mutation detector if the project asks for it."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_ASKED] = []
    config.addinivalue_line("markers", _SIMULATION)
    if config.getini("listwatch_mutation_detector"):
        os.environ.setdefault(_MUTATION_DETECTOR, "1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> "Generator[None]":
    """Fail a test whose program lacks a right, and name the right if the test fails anyway."""
    server = getattr(item, "funcargs", {}).get("apiserver")
    try:
        yield
    except BaseException:
        if words := _missing(server):
            item.add_report_section("call", "missing rights", words)
        raise
    if words := _missing(server):
        pytest.fail(words, pytrace=False)


def _missing(server: object) -> str:
    return str(getattr(server, "missing_rights", "") or "")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the recorded roles; a worker of pytest-xdist hands its record to the main process."""
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = config.stash[_ASKED]
        return
    file = config.getoption("--record-rbac")
    if file is None:
        return
    import msgspec  # noqa: PLC0415 - loaded on first use

    from listwatch.apiserver.access.asked_rights import (  # noqa: PLC0415 - as above
        TEST_CLIENT,
        AskedRight,
    )
    from listwatch.runtime.packaging.recorded import write_recorded  # noqa: PLC0415 - as above

    asked = msgspec.convert(config.stash[_ASKED], list[AskedRight])
    programs = [each for each in asked if each.program != TEST_CLIENT]
    path = config.invocation_params.dir / file
    words = "no program asked for anything: give it config=apiserver.config"
    if programs:
        words = f"the roles of {', '.join(write_recorded(path, programs))} are in {path}"
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"--record-rbac: {words}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the record of a worker of pytest-xdist."""
    node.config.stash[_ASKED].extend(getattr(node, "workeroutput", {}).get(_OUTPUT, ()))


@pytest.fixture
def apiserver(request: pytest.FixtureRequest) -> "Iterator[APIServer]":
    """An API server for one test of any kind, configured by the marker `apiserver`."""
    from listwatch.testing.api_server import APIServer  # noqa: PLC0415 - loaded on first use

    marker = request.node.get_closest_marker("apiserver")
    if marker is not None and marker.args:
        pytest.fail("the marker `apiserver` takes keyword arguments alone", pytrace=False)
    try:
        server = APIServer(**(marker.kwargs if marker is not None else {}))
    except TypeError as error:
        pytest.fail(f"the marker `apiserver`: {error}", pytrace=False)
    with _recorded(request.config, server):
        yield server


@contextlib.contextmanager
def _recorded(config: pytest.Config, server: "APIServer") -> "Generator[None]":
    """Run a server, and record what it is asked for if the command line says so."""
    from listwatch.errors import ConfigError  # noqa: PLC0415 - loaded on first use

    try:
        server.__enter__()
    except ConfigError as error:
        pytest.fail(f"the fixture `apiserver`: {error}", pytrace=False)
    with contextlib.ExitStack() as stack:
        stack.push(server)
        if config.getoption("--record-rbac") is not None:
            server.record_rights()
            stack.callback(lambda: _keep(config, server.asked_rights))
        yield


def _keep(config: pytest.Config, asked: "Iterable[AskedRight]") -> None:
    import msgspec  # noqa: PLC0415 - loaded on first use

    config.stash[_ASKED].extend(map(msgspec.structs.asdict, asked))


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """`listwatch.simulation.simulate`, which fails the test with the story of a violation.

    The options of the marker `simulation` apply, then those of the call. `--simulate` sets the
    seconds to search, and `--replay` the only world to run.
    """
    from listwatch.client.durations import seconds_of  # noqa: PLC0415 - loaded on first use
    from listwatch.simulation.report import SimulationFailedError  # noqa: PLC0415 - as above
    from listwatch.simulation.simulating import simulate  # noqa: PLC0415 - as above

    marker = request.node.get_closest_marker("simulation")
    given = dict(marker.kwargs) if marker is not None else {}
    asked = request.config.getoption("--simulate")
    replay = request.config.getoption("--replay")

    def run(make_app: object, scenario: object, **options: object) -> "Report":
        chosen = {"seconds": 2.0, **given, **options}
        if asked:
            try:
                chosen["seconds"] = seconds_of(asked)
            except ValueError as error:
                pytest.fail(f"--simulate: {error}", pytrace=False)
        if replay:
            chosen["replay"] = replay
        if request.config.getoption("--record-rbac") is not None:
            chosen["records_rights"] = True
        report = simulate(make_app, scenario, **chosen)  # type: ignore[arg-type]  # checked there
        _keep(request.config, report.asked)
        try:
            report.check()
        except SimulationFailedError as failure:
            pytest.fail(str(failure), pytrace=False)
        return report

    return run


if find_spec("pytest_asyncio") is None:

    @pytest.fixture
    def webhook_server() -> None:
        """Fail with a message about the missing plugin."""
        pytest.fail(
            "the fixture `webhook_server` is asynchronous and needs pytest-asyncio: install it",
            pytrace=False,
        )

    @pytest.fixture
    def client() -> None:
        """Fail with a message about the missing plugin."""
        pytest.fail(
            "the fixture `client` is asynchronous and needs pytest-asyncio: install it, or reach "
            "the server of the fixture `apiserver` with listwatch.sync and `apiserver.config`",
            pytrace=False,
        )

else:
    import pytest_asyncio

    @pytest_asyncio.fixture(name="client")
    async def _client(apiserver: "APIServer") -> "AsyncIterator[Client]":
        """A client of the server of `apiserver`, for asyncio tests."""
        async with apiserver.client() as client:
            yield client

    @pytest_asyncio.fixture(name="webhook_server")
    async def _webhook_server() -> "AsyncIterator[WebhookServer]":
        """A server for the webhooks of an asyncio test, with a certificate made for it."""
        from listwatch.testing.webhook_server import (  # noqa: PLC0415 - loaded on first use
            WebhookServer,
        )

        async with WebhookServer() as server:
            yield server
