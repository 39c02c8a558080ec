"""Headers that tell a backend the client's address (HAProxy's PROXY protocol)."""

import ipaddress
import socket
from enum import StrEnum
from typing import Final

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_PROXY_COMMAND: Final = 0x21  # version 2, PROXY
_TCP4: Final = 0x11
_TCP6: Final = 0x21


class ProxyProtocol(StrEnum):
    """The version of the header to send, if any."""

    NONE = "none"
    V1 = "v1"
    V2 = "v2"


def header(version: ProxyProtocol, source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    """Return the header of a connection.

    Args:
        version: NONE returns no bytes.
        source: the client's address.
        destination: the address it connected to, of the same family.
    """
    if version is ProxyProtocol.NONE:
        return b""
    is_v4 = ipaddress.ip_address(source[0]).version == 4
    if version is ProxyProtocol.V1:
        family = "TCP4" if is_v4 else "TCP6"
        return (
            f"PROXY {family} {source[0]} {destination[0]} {source[1]} {destination[1]}\r\n"
        ).encode()
    kind = socket.AF_INET if is_v4 else socket.AF_INET6
    body = (
        socket.inet_pton(kind, source[0])
        + socket.inet_pton(kind, destination[0])
        + source[1].to_bytes(2)
        + destination[1].to_bytes(2)
    )
    return (
        _SIGNATURE
        + bytes((_PROXY_COMMAND, _TCP4 if is_v4 else _TCP6))
        + len(body).to_bytes(2)
        + body
    )
