"""The figures in the documentation are those of the benchmarks' results."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "render"), [("tls", "tables"), ("many_cores", "table"), ("stages", "table")]
)
def test_tables_of_figures_are_made_from_the_results(
    name: str, render: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    benchmark = importlib.import_module(name)
    text = getattr(benchmark, render)(json.loads(benchmark.RESULTS.read_text(encoding="utf-8")))
    page = benchmark.PAGE.read_text(encoding="utf-8")
    mark = f"python bench/{name}.py"
    assert f"<!-- begin: {mark} -->\n\n{text}\n<!-- end: {mark} -->\n" in page


def test_the_page_of_benchmarks_and_the_readme_are_made_from_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    benchmark = importlib.import_module("report")
    result, faults, client_go = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (benchmark.RESULTS, benchmark.FAULTS, benchmark.CLIENT_GO)
    )
    text = benchmark.page(result, faults, client_go)
    assert benchmark.PAGE.read_text(encoding="utf-8") == text
    readme = benchmark.README.read_text(encoding="utf-8")
    assert f"-->\n\n{benchmark.readme_table(result)}\n<!-- end: {benchmark.MARK} -->\n" in readme
