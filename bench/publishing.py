"""Writes results as JSON, and the text made of them into a page."""

import json
from pathlib import Path


def put_in(page: Path, mark: str, text: str) -> None:
    """Write the text between the marks of this name in a page."""
    whole = page.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(f"<!-- begin: {mark} -->\n")
    _, end, after = rest.partition(f"<!-- end: {mark} -->\n")
    assert begin
    assert end
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def publish(results: Path, page: Path, mark: str, result: object, text: str) -> None:
    """Write the results as JSON, and their text into the page."""
    results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    put_in(page, mark, text)
