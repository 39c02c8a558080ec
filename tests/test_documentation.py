"""The documentation is correct: programs run, links work, options exist."""

import ast
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import api_server

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[tuple[str, str, str]]:
    """Return the position, the text, and the `text` block right after it, of each block."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = list(BLOCK.finditer(text))
        for place, block in enumerate(blocks):
            if block[1] != language:
                continue
            line = text.count("\n", 0, block.start()) + 1
            after = blocks[place + 1 :]
            shown = after[0][2] if after and after[0][1] == "text" else ""
            found.append((f"{page.relative_to(ROOT)}:{line}", block[2], shown))
    return found


def _is_program(text: str) -> bool:
    return text.startswith(("import ", "from "))


PYTHON = _blocks("python")
PROGRAMS = [block for block in PYTHON if _is_program(block[1])]


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with api_server(tmp_path_factory.mktemp("server")) as path:
        yield path


@pytest.mark.parametrize(("text"), [b[1] for b in PYTHON], ids=[b[0] for b in PYTHON])
def test_python_in_the_documentation_can_be_read(text: str) -> None:
    compile(text, "documentation", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(
            *block[1:],
            id=block[0],
            marks=[pytest.mark.proof] if block[0].startswith("docs/guides/") else [],
        )
        for block in PROGRAMS
    ],
)
def test_a_program_in_the_documentation_runs_and_prints_what_is_shown(
    text: str, shown: str, kubeconfig: Path, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(text)
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", str(script)],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin:/bin"},
        )
        deadline = time.monotonic() + 30
        while process.poll() is None and (not shown or output.read_text() != shown):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        was_running = process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=25)
    assert output.read_text() == shown, complaints
    if not was_running:
        assert process.returncode == 0, complaints


def test_the_readme_has_a_program() -> None:
    assert any(name.startswith("README.md") for name, *_ in PROGRAMS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name} links to {target}"


def test_the_start_page_leads_to_every_page_and_the_readme_to_it() -> None:
    start = ROOT / "docs/index.md"
    links = re.findall(r"\]\(([^)#]+)", start.read_text(encoding="utf-8"))
    targets = {(start.parent / link).resolve() for link in links}
    assert [page.name for page in PAGES if page not in targets] == ["index.md"]
    assert "(docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_navigation_of_the_site_has_every_page() -> None:
    (navigation,) = re.findall(
        r"^nav:\n(.*)\Z", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL
    )
    entries = set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE))
    docs = ROOT / "docs"
    assert entries == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


def test_the_drawings_are_those_that_the_script_draws() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/draw_diagrams.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_option_of_observe_that_is_documented_exists() -> None:
    from listwatch.observe.command import observe_command

    options = {name for option in observe_command.params for name in option.opts}
    text = (ROOT / "docs/observe.md").read_text(encoding="utf-8")
    own = text[: text.index("## Where it differs")]
    documented = set(re.findall(r"`?(--[a-z][a-z-]+)", own))
    assert documented <= options | {"--help"}
    visible = {
        option.opts[-1] for option in observe_command.params if not getattr(option, "hidden", False)
    }
    missing = {name for name in visible if name.startswith("--")} - set(
        re.findall(r"--[a-z-]+", own)
    )
    assert missing == set(), "undocumented options"


def test_the_exit_codes_in_the_documentation_are_those_of_the_help() -> None:
    from listwatch.observe import command

    def codes(text: str, pattern: str) -> dict[int, str]:
        return {int(code): words for code, words in re.findall(pattern, text, re.MULTILINE)}

    text = (ROOT / "docs/observe.md").read_text(encoding="utf-8").replace("`", "")
    told = codes(command._EXIT_CODES, r"^  (\d+) +(.*)$")
    assert codes(text, r"^\| (\d+) \| (.*) \|$") == told


def test_the_architecture_names_every_room_and_every_module_of_observe() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = ROOT / "src/listwatch"
    rooms = [path.parent.name for path in source.glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}/`" not in text] == []
    modules = [path.name for path in (source / "observe").glob("*.py") if path.stem != "__init__"]
    assert [name for name in modules if f"`{name}`" not in text] == []
