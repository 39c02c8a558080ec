"""Draw the diagrams of the documentation: docs/images/*.svg.

    python tools/draw_diagrams.py            prints the names of drawings that differ
    python tools/draw_diagrams.py --write    writes them

They load nothing from elsewhere, and follow the reader's light or dark setting. A test compares the
files with this script.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1f2933; }
    .small { font-size: 12px; fill: #52606d; }
    .box { fill: #eef2ff; stroke: #4051b5; stroke-width: 1.5; }
    .yours { fill: #e3f9e5; stroke: #207227; }
    .line { stroke: #4051b5; stroke-width: 1.5; fill: none; }
    .head { fill: #4051b5; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f5f7fa; }
      .small { fill: #cbd2d9; }
      .box { fill: #2b3158; stroke: #8f9ded; }
      .yours { fill: #14401a; stroke: #7bc47f; }
      .line { stroke: #8f9ded; }
      .head { fill: #8f9ded; }
    }
"""


def words(text: str, x: int, y: int, *, small: bool = False) -> str:
    """Return a text centred at a point."""
    kind = ' class="small"' if small else ""
    return f'<text{kind} x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'


@dataclass(frozen=True)
class Box:
    """A labelled box: position and size in pixels, a title, and small lines below it."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    yours: bool = False

    def svg(self) -> str:
        """Return the box as SVG."""
        kind = "box yours" if self.yours else "box"
        middle, top = self.x + self.width // 2, self.y + 24
        place = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        rect = f'<rect class="{kind}" {place} rx="6"/>'
        texts = [words(self.title, middle, top)]
        texts += [
            words(line, middle, top + 18 * number, small=True)
            for number, line in enumerate(self.lines, 1)
        ]
        return "\n  ".join([rect, *texts])


def arrow(points: list[tuple[int, int]], label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """Return a line through the points that ends in an arrow head, with a label."""
    path = " ".join(f"{x},{y}" for x, y in points)
    line = f'<polyline class="line" points="{path}" marker-end="url(#head)"/>'
    return line + ("\n  " + words(label, *at, small=True) if label else "")


def drawing(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a whole drawing."""
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/></marker>'
    )
    inner = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">\n  <title>{escape(title)}</title>\n'
        f"  <style>{STYLE}  </style>\n"
        f"  <defs>{head}</defs>\n  {inner}\n</svg>\n"
    )


def event() -> str:
    """Return the drawing of an event's way from the server to the user's code and back."""
    row = [
        Box(10, 60, 110, 84, "API server", ("lists and", "watches")),
        Box(160, 60, 120, 84, "Client", ("splits bytes", "into objects")),
        Box(320, 60, 130, 84, "Reflector", ("lists, watches,", "recovers")),
        Box(490, 60, 120, 84, "FIFO", ("one order", "over all keys")),
        Box(650, 60, 130, 84, "CacheWriter", ("compares uids,", "the only writer")),
    ]
    lower = [
        Box(650, 210, 130, 84, "Indexer", ("frozen objects,", "read by any thread")),
        Box(490, 210, 120, 84, "Handlers", ("each with its", "own queue")),
        Box(320, 210, 130, 84, "WorkQueue", ("keys, merged,", "with retries")),
        Box(160, 210, 120, 84, "Reconcile", ("your function",), yours=True),
    ]
    parts = [box.svg() for box in (*row, *lower)]
    labels = ["bytes", "items", "deltas", "batches"]
    for left, right, label in zip(row, row[1:], labels, strict=False):
        start, end = left.x + left.width, right.x
        parts.append(arrow([(start, 102), (end, 102)], label, ((start + end) // 2, 52)))
    parts += [
        arrow([(715, 144), (715, 210)], "state", (745, 182)),
        arrow([(670, 144), (670, 175), (550, 175), (550, 210)], "changes", (610, 168)),
        arrow([(490, 252), (450, 252)]),
        arrow([(320, 252), (280, 252)]),
        arrow([(220, 294), (220, 330), (715, 330), (715, 294)], "reads", (470, 322)),
        arrow([(160, 252), (65, 252), (65, 144)], "writes", (100, 244)),
    ]
    return drawing(800, 350, "The way of an event from the API server to your function", parts)


def architecture() -> str:
    """Return the drawing of the rooms: each may import from those below."""
    rows = [
        [("cli", 760)],
        [("testing", 760)],
        [("controllers", 244), ("observe", 244), ("sync", 244)],
        [("runtime", 760)],
        [("resources", 760)],
        [("client", 373), ("apiserver", 373)],
        [("cache", 373), ("workqueue", 373)],
        [("objects", 760)],
        [("schema, cel", 760)],
        [("backoff, selector, clock, errors …", 760)],
    ]
    parts = []
    for number, row in enumerate(rows):
        x = 20
        for title, width in row:
            parts.append(Box(x, 16 + 46 * number, width, 36, title).svg())
            x += width + 14
    return drawing(
        800, 16 + 46 * len(rows) + 10, "The rooms of the package, from top to bottom", parts
    )


DRAWINGS = {"event.svg": event, "architecture.svg": architecture}


def main() -> int:
    """Write the drawings, or tell which differ."""
    differing = [
        name
        for name, draw in DRAWINGS.items()
        if not (IMAGES / name).exists() or (IMAGES / name).read_text(encoding="utf-8") != draw()
    ]
    if "--write" in sys.argv[1:]:
        IMAGES.mkdir(exist_ok=True)
        for name in differing:
            (IMAGES / name).write_text(DRAWINGS[name](), encoding="utf-8")
        return 0
    for name in differing:
        print(f"docs/images/{name} differs: run `python tools/draw_diagrams.py --write`")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
