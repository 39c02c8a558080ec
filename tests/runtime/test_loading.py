"""Loading a file: which code runs, and which manager is chosen."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from listwatch.client.config import Config
from listwatch.errors import ConfigError
from listwatch.runtime import Manager, load_app
from listwatch.runtime.commands import run_command
from processes import listwatch

HEADER = """
import asyncio, sys, threading
from listwatch.runtime import Manager, LeaderElector
from listwatch.client.config import Config

app = Manager("one", config=Config(server="http://127.0.0.1:9"))

@app.task
async def act():
    print("ACTED", flush=True)
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what loading adds to the path: a file may be named pytest.py."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def program(tmp_path: Path, text: str, name: str = "program.py", header: str = HEADER) -> Path:
    path = tmp_path / name
    path.write_text(header + text)
    return path


RUNNING = [
    "app.run()",
    "asyncio.run(app.serve())",
    "with asyncio.Runner() as runner: runner.run(app.serve())",
    "sys.exit(app.run())",
    "def main(): app.run()\nmain()",
    "thread = threading.Thread(target=app.run)\nthread.start()\nthread.join()",
    "asyncio.run(asyncio.wait_for(app.serve(), 5))",
]


@pytest.mark.parametrize("text", RUNNING)
def test_nothing_runs_while_a_file_is_loaded(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, text)
    app = load_app(path)
    assert app.name == "one"
    (line,) = caplog.messages
    assert line.startswith(f"{path}: app.")
    assert line.endswith("does nothing while the file is loaded")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("text", RUNNING)
def test_rbac_prints_rights_alone_of_a_file_that_runs(tmp_path: Path, text: str) -> None:
    done = listwatch("rbac", str(program(tmp_path, f"print('hello')\n{text}")))
    assert done.returncode == 0
    assert done.stdout.startswith("---\napiVersion: v1\nkind: ServiceAccount")
    assert "hello" not in done.stdout
    assert "ACTED" not in done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if "does nothing" in line]


LATER = [
    "import atexit\natexit.register(app.run)",
    "import atexit\natexit.register(lambda: asyncio.run(app.serve()))",
    "threading.Timer(0.3, app.run).start()",
    "import weakref\nclass Last: pass\nlast = Last()\nweakref.finalize(last, app.run)",
]


@pytest.mark.parametrize("text", LATER)
def test_rbac_runs_nothing_that_the_file_left_for_later(tmp_path: Path, text: str) -> None:
    done = listwatch("rbac", str(program(tmp_path, text)))
    assert done.returncode == 0
    assert done.stdout.startswith("---\napiVersion: v1\nkind: ServiceAccount")
    assert "ACTED" not in done.stdout + done.stderr
    assert "does nothing" in done.stderr


@pytest.mark.parametrize("content", [b"\0\0", b"# -*- coding: nosuch -*-\n", b"x = '\xff'\n"])
def test_what_is_no_python_source_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "program.py"
    path.write_bytes(content)
    with pytest.raises((ConfigError, SyntaxError)) as refused:
        load_app(path)
    where = refused.value.filename if isinstance(refused.value, SyntaxError) else str(refused.value)
    assert str(path) in str(where)


def test_an_asynchronous_make_app_is_refused_in_words(tmp_path: Path) -> None:
    text = "async def make_app(**options):\n    return app\n"
    with pytest.raises(ConfigError, match="make_app is a coroutine function: write it without"):
        load_app(program(tmp_path, text))


@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("run", "app = Manager('x')", "no reconciler, task or webhook"),
        ("rbac", "app = Manager('a b\\n')", r"'a b\n' can't name a service account"),
        ("rbac", "app = Manager('Widgets')", "'Widgets' can't name a service account"),
    ],
)
def test_a_program_that_can_not_be_run_or_named_is_one_line(
    tmp_path: Path, command: str, text: str, words: str
) -> None:
    done = listwatch(command, str(program(tmp_path, text, header=IMPORTS)))
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert words in line


def test_a_block_that_enters_the_manager_is_refused_in_words(tmp_path: Path) -> None:
    text = """
async def main():
    async with app:
        print("ACTED")

asyncio.run(main())
"""
    with pytest.raises(ConfigError, match=r'program\.py: async with app .*`if __name__ == "__main'):
        load_app(program(tmp_path, text))
    done = listwatch("rbac", str(program(tmp_path, text)))
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")


@pytest.mark.parametrize("name", ["__main__.py", "program.py", "json.py", "pytest.py"])
def test_the_main_block_never_runs_and_no_module_is_hidden(tmp_path: Path, name: str) -> None:
    before = {module: sys.modules[module] for module in ("__main__", "json", "pytest")}
    text = 'if __name__ == "__main__":\n    raise RuntimeError("it ran")\n'
    assert load_app(program(tmp_path, text, name)).name == "one"
    assert before == {module: sys.modules[module] for module in before}


def test_a_file_that_ends_the_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it exits \(SystemExit\(3\)\)"):
        load_app(program(tmp_path, "sys.exit(3)"))


def test_types_of_the_file_find_their_names(tmp_path: Path) -> None:
    text = """
from typing import get_type_hints
class Late:
    other: "Late"
def make_app(**options):
    assert get_type_hints(Late) == {"other": Late}
    return app
"""
    assert load_app(program(tmp_path, text)).name == "one"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("other = Manager('two')\nother.run()", "two"),
        ("other = Manager('two')\nasyncio.run(other.serve())", "two"),
        ("del app\ndef main():\n    Manager('local').run()\nmain()", "local"),
        ("same = app", "one"),
    ],
)
def test_of_several_managers_the_one_that_the_file_runs_is_the_program(
    tmp_path: Path, text: str, name: str
) -> None:
    assert load_app(program(tmp_path, text)).name == name


@pytest.mark.parametrize(
    "text", ["other = Manager('two')", "other = Manager('two')\napp.run()\nother.run()"]
)
def test_several_programs_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"2 Managers among its global names \(app, other\)"):
        load_app(program(tmp_path, text))


async def test_only_the_program_runs_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        "def make_app(**o):\n    made = Manager('made', **o)\n    made.other = app\n    return made"
    )
    app = load_app(program(tmp_path, text))
    other: Manager = app.other  # type: ignore[attr-defined]  # set by the file
    await other.serve()
    assert "app.serve() does nothing" in caplog.text
    with pytest.raises(ValueError, match="no reconciler, task or webhook"):
        await app.serve()


# --- Options ---


def loaded(tmp_path: Path, text: str, header: str = HEADER, **options: Any) -> Manager:
    return load_app(program(tmp_path, text, header=header), **options)


IMPORTS = HEADER.partition("app =")[0] + "from listwatch.client.client import Client\n"
CONFIG = Config(server="http://127.0.0.1:8")


@pytest.mark.parametrize(
    "text",
    [
        "app = Manager('x', leader_election='mine')\napp.run()",
        "def make_app(**options): return Manager('x', **options)",
        "def make_app(**options): return Manager('x')",
        "def make_app(): return Manager('x')",
        "def make_app(config): return Manager('x', config=config)",
        "def make_app(leader_election=None, config=None): return Manager('x', health_port=None)",
        "app = Manager('x', sharing='group')",
    ],
)
def test_options_take_effect_whatever_the_file_does_with_them(tmp_path: Path, text: str) -> None:
    app = loaded(
        tmp_path,
        text,
        IMPORTS,
        config=CONFIG,
        leader_election="asked",
        namespace="there",
        health_port=0,
        health_host="127.0.0.2",
    )
    assert (app.lease, app.shares_keys, app.has_server) == ("asked", False, True)
    # private: settings that a command changes before the start
    assert (app._namespace, app._showing.host, app._showing.port) == ("there", "127.0.0.2", 0)
    assert app._config == CONFIG  # private: settings that a command changes before the start
    assert loaded(tmp_path, text, IMPORTS, config=CONFIG, leader_election="").lease == ""


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (
            "app = Manager('x', client=Client(Config(server='http://127.0.0.1:9')))",
            {"config": CONFIG},
            "the program has its own client",
        ),
        (
            "def make_app(): return Manager('x', client=Client(Config(server='http://h')))",
            {"config": CONFIG},
            "the program has its own client",
        ),
        ("app = Manager('x', health_port=None)", {"health_host": "::1"}, "give the port too"),
        ("app = Manager('x', health_port=None)", {"ui": True}, "give the port too"),
        (
            "app = Manager('x', leader_election=LeaderElector(None, namespace='n', name='l'))",
            {"namespace": "other"},
            "the program has its own elector",
        ),
        ("app = Manager('x')", {"color": 1}, "it has no make_app that takes color"),
        ("def make_app(config=None): return 1", {"color": 1}, "make_app does not take color"),
        ("def make_app(must): return 1", {}, "make_app can't be called: missing a required"),
    ],
)
async def test_an_option_that_can_not_take_effect_is_an_error(
    tmp_path: Path, text: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, text, IMPORTS, **options)


async def test_a_client_that_make_app_made_of_the_configuration_stays(tmp_path: Path) -> None:
    text = "def make_app(config): return Manager('x', client=Client(config))"
    assert loaded(tmp_path, text, IMPORTS, config=CONFIG).has_client


def test_run_elects_a_leader_for_a_file_that_runs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run = Manager.run

    def watched(app: Manager) -> None:
        # private: settings that a command changes before the start
        if app._loading is not None and app._loading.chosen is app:
            ran.append(app.lease)
        else:
            run(app)

    monkeypatch.setattr(Manager, "run", watched)
    result = CliRunner().invoke(
        run_command, [str(program(tmp_path, "app.run()")), "--leader-election", "x"]
    )
    assert (result.exit_code, ran) == (0, ["x"])


SOURCES = """
app = Manager("x")
{before}
maps = app.reconciler("maps").for_("configmaps").owns("pods", namespace="own").reads("nodes")

@maps
async def reconcile(key): ...
"""


@pytest.mark.parametrize(
    ("before", "options", "watched"),
    [
        ("", (), {None}),
        ("", ("-n", "a", "--namespace", "b"), {"a", "b"}),
        ("app.cache_defaults(namespaces=['c'])", ("-n", "a"), {"a"}),
        ("app.cache_defaults(namespaces=['c'])", (), {"c"}),
        ("app.cache_defaults('configmaps', namespaces=['c'])", ("-n", "a"), {"c"}),
    ],
)
def test_run_watches_the_namespaces_that_it_is_given_and_keeps_the_lease_elsewhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    options: tuple[str, ...],
    watched: set[str | None],
) -> None:
    seen: list[Manager] = []

    def note(app: Manager) -> None:
        seen.append(app)

    monkeypatch.setattr(Manager, "run", note)
    path = program(tmp_path, SOURCES.format(before=before), header=IMPORTS)
    arguments = [str(path), *options, "--lease-namespace", "home", "-s", "http://127.0.0.1:9"]
    result = CliRunner().invoke(run_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    (app,) = seen
    places: dict[str, set[str | None]] = {}
    for cache in app.caches:
        places.setdefault(cache.selection.resource, set()).add(cache.selection.namespace)
    assert (places["configmaps"], places["pods"]) == (watched, {"own"})
    assert app._namespace == "home"  # private: settings that a command changes before the start
    assert app._config is not None  # as above
    assert app._config.namespace == "default"


def test_run_keeps_the_server_of_a_file_unless_another_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Manager] = []

    def note(app: Manager) -> None:
        seen.append(app)

    monkeypatch.setattr(Manager, "run", note)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{contexts: [{name: c, context: {cluster: c}}], current-context: c,"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:7'}}]}"
    )
    path = str(program(tmp_path, ""))
    for arguments in ([path], [path, "--kubeconfig", str(kubeconfig)]):
        result = CliRunner().invoke(run_command, arguments, catch_exceptions=False)
        assert result.exit_code == 0
    # private: settings that a command changes before the start
    servers = [app._config.server for app in seen if app._config is not None]
    assert servers == ["http://127.0.0.1:9", "http://127.0.0.1:7"]
    bare = program(tmp_path, "app = Manager('x')\napp.task(asyncio.sleep)", "bare.py", IMPORTS)
    result = CliRunner().invoke(run_command, [str(bare)])
    assert isinstance(result.exception, ConfigError)


def test_the_manager_of_a_plain_script_runs() -> None:
    acted: list[str] = []
    app = Manager("plain", config=Config(server="http://127.0.0.1:9"), health_port=None)

    @app.task
    async def act() -> None:
        acted.append(app.name)
        app.stop()
        await asyncio.sleep(0)

    app.run()
    assert acted == ["plain"]
