import json
import os
import signal
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from pathlib import Path

import pytest

from listwatch import __main__, cli
from listwatch.client.command import config_command
from listwatch.client.command_line import from_go_spelling
from listwatch.observe.command import observe_command
from processes import running


def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "listwatch", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )


def test_version_and_help_load_no_subcommand() -> None:
    program = (
        "import sys\nfrom listwatch import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "import json; print('MODULES', json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "observe" in done.stdout
    assert "apiserver" in done.stdout
    modules = json.loads(done.stdout.partition("MODULES ")[2])
    assert not {"aiohttp", "yaml", "msgspec", "rich", "prometheus_client"} & set(modules)
    version = _run("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("listwatch, version ")


@pytest.mark.parametrize("arguments", [("--version", "-v"), ("-v", "--version")])
def test_the_version_tells_what_is_in_use(arguments: tuple[str, str]) -> None:
    lines = _run(*arguments).stdout.splitlines()
    assert lines[1].startswith("cpython 3.")
    assert f"httptools {installed('httptools')}: " in lines[3]
    assert [line.partition(" ")[0] for line in lines[2:]] == [
        "aiofastnet",
        "httptools",
        "uvloop",
        "zstandard",
    ]


def test_importing_the_package_is_cheap() -> None:
    program = (
        "import resource, time\n"
        "before = resource.getrusage(resource.RUSAGE_SELF)\n"
        "import listwatch\n"
        "after = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,"
        " int(next(line for line in open('/proc/self/status') if 'VmHWM' in line).split()[1])"
        " / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    seconds, megabytes = map(float, done.stdout.split())
    assert seconds <= 0.1
    assert megabytes <= 25


def test_the_help_of_observe_has_the_exit_codes() -> None:
    done = _run("observe", "--help")
    assert done.returncode == 0
    assert "127  a command was not found" in done.stdout
    assert "[-- COMMAND [ARG]...]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["observe"], 2, "you must specify at least one argument containing the resource"),
        (["observe", "pods", "--names", "echo"], 2, "--delete and --names must both be specified"),
        (["observe", "pods", "--exit-after", "soon"], 2, "'soon' is not a duration"),
        (["observe", "pods", "--parallel", "0"], 2, "--parallel"),
        (["observe", "pods", "-o", "xml", "--template", "x"], 2, "--output=xml: unknown format"),
        (["observe", "pods", "--template", "{.a"], 2, "unclosed action"),
        (["observe", "pods", "-o", "go-template", "--template", "{{x}}"], 2, '"x" not defined'),
        (["observe", "pods", "-o", "jsonpath-file", "--template", "/no"], 2, "/no"),
        (["observe", "pods", "-o", "json", "--", "true"], 2, "remove it or the command"),
        (["observe", "pods", "-l", "a=b=c"], 2, "a=b=c"),
        (["observe", "pods", "--max-deletes", "all"], 2, "'all' is not a limit"),
        (["observe", "pods", "--", "no-such-command"], 127, "no-such-command: no such command"),
        (["observe", "pods", "--", "/etc/passwd"], 126, "/etc/passwd: not an executable file"),
        (["observe", "pods", "--parallel", "1001"], 2, "1001 is not in the range 1<=x<=1000"),
        (["observe", "pods", "--kubeconfig", "/no/such"], 3, "/no/such"),
        (["service-controller", "--kubeconfig", "/no/such"], 3, "/no/such"),
        (["build-controllers", "--kubeconfig", "/no/such"], 3, "/no/such"),
        (["service-controller", "--health-port", "65536"], 2, "65536 is not in the range"),
        (["apiserver", "--port", "65536"], 2, "65536 is not in the range 0<=x<=65535"),
        (["nonsense"], 2, "nonsense"),
        (["observe", "--nonsense"], 2, "--nonsense"),
    ],
)
def test_mistakes_are_told_clearly_each_with_its_exit_code(
    arguments: list[str], code: int, words: str
) -> None:
    done = _run(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_broken_kubeconfig_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{not yaml: [")
    done = _run("observe", "pods", KUBECONFIG=str(config))
    assert done.returncode == 3
    assert str(config) in done.stderr
    assert done.stderr.count("\n") == 1


def _kubeconfig(tmp_path: Path, server: str) -> Path:
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": server}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config.write_text(
        json.dumps(
            {
                "clusters": [cluster],
                "contexts": [context],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )
    )
    return config


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    config = _kubeconfig(tmp_path, "http://127.0.0.1:9")
    done = _run("observe", "pods", KUBECONFIG=str(config))
    assert done.returncode == 4
    assert "127.0.0.1:9" in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_observe_ends_as_asked_while_a_server_keeps_it_waiting(
    tmp_path: Path, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = _kubeconfig(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.settimeout(30)
        with running("observe", "pods", KUBECONFIG=str(config)) as observe:
            connection, _ = silent.accept()
            with connection:
                assert observe.stop(number) == 0
    assert observe.out == observe.err == []


def test_an_unknown_command_name_gives_no_command() -> None:
    context = cli.cli.make_context("listwatch", [], resilient_parsing=True)
    assert cli.cli.get_command(context, "nothing") is None
    assert {"apiserver", "observe"} <= set(cli.cli.list_commands(context))


@pytest.mark.parametrize("module", ["listwatch", "listwatch.cli"])
def test_the_package_can_be_run(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("listwatch, version ")


def test_the_command_is_what_the_package_runs() -> None:
    (entry,) = entry_points(group="console_scripts", name="listwatch")
    assert entry.load() is __main__.main


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("obsrve", "Did you mean 'observe'?"),
        ("api-server", "Did you mean 'apiserver'?"),
        ("xyz", "Try apiserver, build-controllers, "),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(word: str, hint: str) -> None:
    done = _run(word, "pods")
    assert done.returncode == 2
    assert f"No such command {word!r}. {hint}" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion(shell: str) -> None:
    done = _run("completion", shell)
    assert done.returncode == 0
    assert "_LISTWATCH_COMPLETE=" in done.stdout
    completed = _run(
        COMP_WORDS="listwatch obs", COMP_CWORD="1" if shell != "fish" else "obs",
        _LISTWATCH_COMPLETE=f"{shell}_complete",
    )  # fmt: skip
    assert "observe" in completed.stdout


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--once=true", "-A=false"], ["--once"]),
        (["--once=1", "-q=T", "--ui=FALSE"], ["--once", "-q"]),
        (["--once=yes"], ["--once=yes"]),
        (["--template", "--once=true", "--", "x", "--once=true"],
         ["--template", "--once=true", "--", "x", "--once=true"]),
        (["--stdin", "--once=true"], ["--stdin", "--once"]),
        (["--allow-missing-template-keys=false"], ["--allow-missing-template-keys=false"]),
        (["--template"], ["--template"]),
        (["-n=default", "-l=a=b", "-v=6"], ["-n", "default", "-l", "a=b", "-v", "6"]),
    ],
)  # fmt: skip
def test_switches_take_values_as_those_of_go_do(given: list[str], words: list[str]) -> None:
    assert from_go_spelling(observe_command, given) == words


@pytest.mark.parametrize(("value", "words"), [("true", ["--check"]), ("0", ["--no-check"])])
def test_a_switch_that_is_on_can_be_switched_off(value: str, words: list[str]) -> None:
    assert from_go_spelling(config_command, [f"--check={value}"]) == words


#: Interrupts itself at a given module lookup, and prints the number of lookups at exit.
INTERRUPTED = """
import atexit, os, signal, sys
from listwatch import __main__
class Finder:
    at = int(sys.argv.pop(1))
    seen = 0
    def find_spec(self, name, path=None, target=None):
        Finder.seen += 1
        if Finder.seen == Finder.at:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
atexit.register(lambda: print(Finder.seen))
__main__.main()
"""


def _interrupted(at: int, directory: Path) -> "subprocess.CompletedProcess[str]":
    arguments = ["observe", "pods", "--once", "--kubeconfig", str(directory / "none")]
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(at), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of modules that the command looks up; coverage may load some earlier."""
    done = _interrupted(0, tmp_path_factory.mktemp("modules"))
    assert done.returncode == 3, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("percent", [0, 2, 10, 30, 50, 70, 90])
def test_ctrl_c_while_modules_are_loaded_is_one_line(
    percent: int, modules: int, tmp_path: Path
) -> None:
    done = _interrupted(1 + modules * percent // 100, tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_what_nobody_reads_any_more_is_no_traceback(tmp_path: Path) -> None:
    config = _kubeconfig(tmp_path, "http://127.0.0.1:9")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "listwatch", "config", "--no-check", "--kubeconfig", str(config)],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
