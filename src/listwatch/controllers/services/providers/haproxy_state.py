"""HAProxy's servers: their health, for its next process, and whether they are as wanted."""

from collections.abc import Iterable, Mapping

from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.haproxy_config import Frontend

# In `srv_admin_state`: the slot was empty in this process's initial configuration.
_WAS_EMPTY = 4


def kept_states(text: str, frontends: Iterable[Frontend]) -> str:
    """Return the part of `show servers state` that applies to a configuration.

    Omits slots whose backend has changed, or that were empty: they would get the health and address
    of another backend.
    """
    places = {
        (frontend.name, f"s{number}"): slot.backend
        for frontend in frontends
        for number, slot in enumerate(frontend.slots)
        if slot.backend is not None and not slot.draining
    }
    version, header, rows = _rows(text)
    if not header:
        return ""
    kept = [version, header]
    for row in rows:
        place = row.get("be_name", ""), row.get("srv_name", "")
        admin = _admin(row)
        if places.get(place) == _backend(row) is not None and not admin & ~_WAS_EMPTY:
            kept.append(" ".join({**row, "srv_admin_state": "0"}.values()))
    return "\n".join(kept) + "\n"


def agrees(text: str, frontends: Iterable[Frontend]) -> bool:
    """Return whether a response to `show servers state` has exactly the backends of frontends."""
    wanted = {
        frontend.server(number): None if slot.draining else slot.backend
        for frontend in frontends
        for number, slot in enumerate(frontend.slots)
    }
    found = {
        f"{row.get('be_name')}/{row.get('srv_name')}": (
            None if _admin(row) & ~_WAS_EMPTY else _backend(row)
        )
        for row in _rows(text)[2]
    }
    return wanted == found


def _rows(text: str) -> tuple[str, str, list[dict[str, str]]]:
    """Return the version, the header and the rows of a response."""
    version, header, *lines = [*(line for line in text.splitlines() if line), "", ""]
    if not header.startswith("# "):
        return version, "", []
    names = header.removeprefix("# ").split(" ")
    return (
        version,
        header,
        [dict(zip(names, line.split(" "), strict=False)) for line in lines if line],
    )


def _admin(row: Mapping[str, str]) -> int:
    text = row.get("srv_admin_state", "")
    return int(text) if text.isdecimal() else ~_WAS_EMPTY


def _backend(row: Mapping[str, str]) -> Backend | None:
    port = row.get("srv_port", "")
    return Backend(row.get("srv_addr", ""), int(port)) if port.isdecimal() else None
