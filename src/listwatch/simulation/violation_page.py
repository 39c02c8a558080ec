"""A violation as one HTML page with a time line, which loads nothing from elsewhere."""

import html
from typing import Final

from listwatch.printable import printable
from listwatch.simulation.report import Coverage, Found, chosen_entries

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #656d76; --line: #d0d7de;
  --paper: #fff; --fault: #fff1d6; --oracle: #ffe3e3; --write: #e3f0ff; --user: #e6f6e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #8d96a0; --line: #3d444d;
  --paper: #0d1117; --fault: #3d2e0a; --oracle: #4d1717; --write: #12263f; --user: #12301b; } }
body { margin: 0 auto; max-width: 90rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin-top: 1.6rem; }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; margin: .3rem 0; }
.lanes { display: grid; border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; }
.lanes > div { border-top: 1px solid var(--line); padding: .2rem .5rem; overflow-wrap: anywhere; }
.lanes > .head { border-top: 0; font-weight: 600; position: sticky; top: 0;
  background: var(--paper); }
.time { color: var(--dim); font-variant-numeric: tabular-nums; white-space: nowrap; }
.fault { background: var(--fault); } .oracle { background: var(--oracle); }
.server { background: var(--write); } .user { background: var(--user); }
.old { color: var(--dim); font-size: .9em; } .who { display: none; }
@media (max-width: 45rem) {
  .lanes { display: block; } .lanes > .head, .lanes > .empty { display: none; }
  .lanes > .time { display: inline-block; width: auto; border-top: 0; padding-bottom: 0; }
  .lanes > .head.time { display: none; } .lanes > div { border-top: 0; }
  .who { display: inline; font-weight: 600; }
}
"""


def page(found: Found, coverage: Coverage, replay: str = "") -> str:
    """Return the page.

    Args:
        found: the world that goes wrong.
        coverage: what was tried.
        replay: how to replay a world; the token follows.
    """
    entries = chosen_entries(found.entries, 400)
    processes = list(
        dict.fromkeys(
            entry.lane
            for entry in entries
            if entry.lane not in {"user", "server", "fault", "oracle"}
        )
    )
    lanes = ["user", "server", *processes]
    columns = f"minmax(4.5rem, max-content) repeat({len(lanes)}, minmax(10rem, 1fr))"
    cells = ["<div class='head time'>seconds</div>"]
    cells += [f"<div class=head>{_escape(lane)}</div>" for lane in lanes]
    for entry in entries:
        cells.append(f"<div class=time>{entry.time:.3f}</div>")
        words = _escape(entry.words)
        if entry.seen:
            behind = entry.revision - entry.seen
            late = f", {behind} behind" if behind > 0 else ""
            words += f" <span class=old>version {entry.seen}{late}</span>"
        words = f"<span class=who>{_escape(entry.lane)}: </span>{words}"
        if entry.lane in {"fault", "oracle"}:
            span = f"grid-column: span {len(lanes)}"
            cells.append(f"<div class={entry.lane} style='{span}'>{words}</div>")
            continue
        place = lanes.index(entry.lane)
        cells += ["<div class=empty></div>"] * place
        kind = f" class={entry.lane}" if entry.lane in {"user", "server"} else ""
        cells.append(f"<div{kind}>{words}</div>")
        cells += ["<div class=empty></div>"] * (len(lanes) - place - 1)
    objections = "".join(
        f"<h2>{_escape(each.oracle)}: {_escape(each.words)}</h2>"
        + "".join(f"<pre>{_escape(line)}</pre>" for line in each.details)
        for each in found.violations
    )
    strikes = "".join(f"<li>{_escape(strike)}</li>" for strike in found.strikes)
    return f"""<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">
<title>listwatch: a violation</title><style>{_STYLE}</style>
<h1>A world that goes wrong</h1>
{objections}
<h2>Faults</h2><ul>{strikes or "<li>none: it happens without faults</li>"}</ul>
<p>Replay: <code>{_escape(f"{replay} {found.token}".strip())}</code></p>
<p>Tried: {_escape(coverage.words)}</p>
<h2>What happened</h2>
<div class=lanes style="grid-template-columns: {columns}">
{"".join(cells)}
</div>
</html>
"""


def _escape(text: str) -> str:
    return html.escape(printable(text))
