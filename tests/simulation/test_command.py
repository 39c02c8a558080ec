"""The command `listwatch simulate`, and the pytest fixture."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from listwatch.cli import cli
from listwatch.errors import ConfigError
from listwatch.simulation import Report, simulate
from simulation.programs import make_app, make_mended_app, one_parent

PROGRAMS = Path(__file__).with_name("programs.py")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["simulate", *arguments], standalone_mode=False)
    code = result.return_value if isinstance(result.return_value, int) else 0
    if result.exception is not None:
        code = getattr(result.exception, "exit_code", 1)
        return code, result.output + str(result.exception)
    return code, result.output


def test_the_command_tells_the_story_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "violation.html"
    token = "h0.s0/4:lost-reply/5:lag"
    options = ["--replay", token, "--html", str(page)]
    code, output = run(f"{PROGRAMS}:make_app", f"{PROGRAMS}:one_parent", *options)
    assert code == 1
    assert "violation of end-state" in output
    assert f"--replay {token}" in output
    text = page.read_text()
    assert "A world that goes wrong" in text
    assert not re.search(r"(src|href)=", text)


def test_a_token_of_another_form_is_a_usage_error() -> None:
    code, output = run(f"{PROGRAMS}:make_app", f"{PROGRAMS}:one_parent", "--replay", "nonsense")
    assert code == 2
    assert "'nonsense' is no token of a world" in output


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    code, output = run(str(tmp_path / "none.py"), f"{PROGRAMS}:one_parent", "--worlds", "1")
    assert code == 1
    assert f"{tmp_path}/none.py: no such file" in output


def test_an_unknown_fault_is_a_usage_error() -> None:
    code, output = run(f"{PROGRAMS}:make_app", f"{PROGRAMS}:one_parent", "--fault", "leg")
    assert code == 2
    assert "no fault is called 'leg'" in output


@pytest.mark.simulation(worlds=5, seconds=60.0)
def test_the_fixture_takes_its_options_from_the_marker(simulate: Callable[..., Report]) -> None:
    assert simulate(make_mended_app, one_parent).coverage.worlds == 5


def test_the_fixture_fails_with_the_story(simulate: Callable[..., Report]) -> None:
    with pytest.raises(pytest.fail.Exception, match="2 instead of 1"):
        simulate(make_app, one_parent, replay="h0.s0/4:lost-reply/5:lag")


def test_a_function_that_another_process_can_not_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="move it to the top level of a module"):
        simulate(lambda: None, one_parent)


def test_the_page_about_simulation_shows_what_its_samples_do(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/simulation.md"
    text = page.read_text(encoding="utf-8")
    controller, scenario, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "controller.py").write_text(controller)
    (tmp_path / "scenario.py").write_text(scenario)
    shown = re.search(r"```text\n(violation of .*?)\nreplay: .*--replay (\S+)", text, re.DOTALL)
    assert shown is not None
    files = [str(tmp_path / name) for name in ("controller.py", "scenario.py")]
    code, output = run(*files, "--replay", shown[2])
    assert code == 1
    generated = re.compile(r"(?<=/app-)[a-z0-9]{5}\b")
    assert generated.sub("…", output).startswith(generated.sub("…", shown[1]))
