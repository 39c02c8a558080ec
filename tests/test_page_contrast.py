"""The colours of the pages: WCAG 2.2, criteria 1.4.3 and 1.4.11, in light and dark."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/listwatch"
PAGES = sorted(
    path for path in SOURCE.rglob("*.html") if "prefers-color-scheme" in path.read_text()
)
#: What is behind text.
BACKS = ("back", "card")


def schemes(page: Path) -> Iterator[dict[str, str]]:
    """Yield the colours of a page by name, for light and for dark."""
    blocks = re.findall(r":root\s*\{([^}]*)\}", page.read_text("utf-8"))
    colours: dict[str, str] = {}
    for block in blocks:
        colours |= dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{3,6})\b", block))
        yield dict(colours)


def channels(colour: str) -> list[float]:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    return [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]


def contrast(one: list[float], other: list[float]) -> float:
    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def used(page: Path, *properties: str) -> set[str]:
    """Return the names of the colours that a page uses for these properties."""
    text = page.read_text("utf-8")
    return {
        name
        for each in properties
        for name in re.findall(rf"(?<![\w-]){each}:[^;}}]*var\(--([\w-]+)\)", text)
    }


def test_the_contrast_of_black_on_white_is_21() -> None:
    assert contrast(channels("#000"), channels("#ffffff")) == pytest.approx(21)
    assert contrast(channels("#777"), channels("#fff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_text_can_be_read_and_controls_seen_in_light_and_dark(page: Path) -> None:
    found = list(schemes(page))
    assert len(found) == 2, "one block of colours for light, one for dark"
    # A pressed button has the colours of text and page the other way round.
    text, edges = used(page, "color") - {"back"}, used(page, "outline")
    backs = used(page, "background") - text
    assert len(text) >= 2
    assert backs
    low = {
        (scheme, name, back, round(ratio, 2))
        for scheme, colours in zip(("light", "dark"), found, strict=True)
        for names, least in ((text, 4.5), (edges, 3.0))
        for name in names
        for back in backs
        if (ratio := contrast(channels(colours[name]), channels(colours[back]))) < least
    }
    assert low == set()


def test_text_on_a_marked_row_can_be_read() -> None:
    page = SOURCE / "observe/page.html"
    (share,) = re.findall(r"\.marked \{[^}]*var\(--bar\) (\d+)%", page.read_text("utf-8"))
    for colours in schemes(page):
        bar, card = channels(colours["bar"]), channels(colours["card"])
        part = int(share) / 100
        # Marked rows lie on a card.
        mixed = [part * one + (1 - part) * other for one, other in zip(bar, card, strict=True)]
        for name in used(page, "color") - {"back"}:
            assert contrast(channels(colours[name]), mixed) >= 4.5, name
