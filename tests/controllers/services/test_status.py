"""The table of `listwatch service-controller --status`."""

import io

import pytest
from rich.console import Console

from listwatch.controllers.services.status import Row, table


@pytest.mark.parametrize("text", ["[bold]a", r"\[bold]a", r"a\\[/]", "[link=https://x.test]a"])
def test_brackets_of_foreign_text_are_shown_as_they_are(text: str) -> None:
    shown = io.StringIO()
    row = Row(key="default/web", addresses=[text], ports=["80/TCP"], backends=1)
    Console(file=shown, width=200).print(table([row]))
    assert shown.getvalue().splitlines()[1].split() == ["default/web", text, "80/TCP", "1"]
