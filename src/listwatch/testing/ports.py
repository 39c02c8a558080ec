"""Ports for servers that must be told theirs before they start."""

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Where Linux tells from which to which port it takes ports by itself.
_SYSTEM_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT: Final = 10_000
_LAST_PORT: Final = 65_535
_TRIES: Final = 100


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port that is free on every IPv4 address at the moment.

    On Linux it is outside the range from which the system takes ports by itself, if that leaves
    others: no connection and no server on port 0, of any process, takes it before its use.

    Raises:
        OSError: no port is free.
    """
    named = _ports_by_name_alone()
    for port in random.sample(named, min(len(named), _TRIES)):
        with suppress(OSError), socket.socket(socket.AF_INET, kind) as sock:
            sock.bind(("", port))
            return port
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("", 0))
        chosen: int = sock.getsockname()[1]
        return chosen


def _ports_by_name_alone() -> range:
    """Return ports that only a program that names them gets; none where they are not known."""
    try:
        first, last = map(int, _SYSTEM_PORTS.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return range(0)
    return max(range(_FIRST_PORT, first), range(last + 1, _LAST_PORT + 1), key=len)
