"""Passes the health of servers to HAProxy's next process."""

from collections.abc import Iterable

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
    version, *lines = [line for line in text.splitlines() if line] or [""]
    if not lines or not lines[0].startswith("# "):
        return ""
    names = lines[0].removeprefix("# ").split(" ")
    kept = [version, lines[0]]
    for line in lines[1:]:
        row = dict(zip(names, line.split(" "), strict=False))
        place = row.get("be_name", ""), row.get("srv_name", "")
        port = row.get("srv_port", "")
        admin = row.get("srv_admin_state", "")
        if (
            port.isdecimal()
            and places.get(place) == Backend(row.get("srv_addr", ""), int(port))
            and admin.isdecimal()
            and not int(admin) & ~_WAS_EMPTY
        ):
            kept.append(" ".join({**row, "srv_admin_state": "0"}.values()))
    return "\n".join(kept) + "\n"
