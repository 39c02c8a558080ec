"""Write the differences from the recordings of a real API server, and their table.

Replays the recordings in tests/data/conformance/recorded on an embedded server, writes the names of
those with different responses into differing.txt beside them, and the share of each theme into
docs/testing.md. `--table` replays nothing and builds the table from the existing list. `--check`
writes nothing: exit code 1 means that the table does not match the list.
"""

import argparse
import asyncio
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "tests"))

from conformance_replay import (  # noqa: E402 - the path comes first
    DIFFERING,
    TOKENS,
    differing,
    recorded,
    replay,
    themes,
)
from listwatch.apiserver import EmbeddedAPIServer  # noqa: E402
from listwatch.apiserver.access.auth import read_tokens  # noqa: E402

_PAGE = _ROOT / "docs" / "testing.md"
_BEGIN = "<!-- recorded: written by tools/recorded.py -->\n"
_END = "<!-- end of recorded -->\n"
_WORDS = {"crd": "custom resources", "kinds": "built-in kinds", "rbac": "RBAC", "http": "HTTP"}


async def _replay_all() -> set[str]:
    """Replay each theme on a separate server."""
    found: set[str] = set()
    for theme in themes():
        tokens = read_tokens(TOKENS, "tokens")
        async with EmbeddedAPIServer(tokens=tokens, controllers=False, test_api=True) as server:
            results = await asyncio.to_thread(
                replay, server.url, recorded(theme), ignore_wording=True
            )
        failed = {name: text for name, text in results.items() if text}
        for name, text in failed.items():
            print(f"{name}: {text[:300]}")
        found |= failed.keys()
    return found


def _title(theme: str) -> str:
    """Return the title of a theme such as `22-crd-apply`."""
    first, *others = theme.split("-")[1:]
    rest = " ".join(others)
    word = _WORDS.get(first, first)
    return f"{word}: {rest}" if first in ("crd", "kinds") else f"{word} {rest}".strip()


def _table() -> str:
    """Return the table of themes, cases and shares."""
    listed = differing()
    lines = ["| theme | cases | answered as recorded |", "|---|---|---|"]
    cases = same = 0
    for theme in themes():
        names = recorded(theme).keys()
        agreeing = len(names - listed)
        lines.append(f"| {_title(theme)} | {len(names)} | {agreeing / len(names):.0%} |")
        cases, same = cases + len(names), same + agreeing
    lines.append(f"| all | {cases:,} | {same / cases:.1%} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="replay nothing")
    parser.add_argument("--check", action="store_true", help="replay and write nothing")
    options = parser.parse_args()
    if not options.table and not options.check:
        DIFFERING.write_text("".join(f"{name}\n" for name in sorted(asyncio.run(_replay_all()))))
    page = _PAGE.read_text()
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    written = before + _BEGIN + _table() + _END + after
    if options.check:
        if written != page:
            print("docs/testing.md is out of date: run `python tools/recorded.py --table`")
        return written != page
    _PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
