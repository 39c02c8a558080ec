"""Who may read web pages that show the inside of a program."""

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

#: A Host header: an IPv6 address in brackets or a name, and a port.
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*))(?::[0-9]{1,5})?")
#: The Content-Security-Policy of pages that load nothing from elsewhere.
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def is_own_name(host: str, own: str = "") -> bool:
    """Return whether a Host header is an address, localhost or our own name; accepts any text.

    Otherwise a web site could point its own name here and let its visitors' browsers read the data
    (DNS rebinding).

    Args:
        host: the header's value.
        own: the host that the server was told to listen on.
    """
    if (found := _HOST.fullmatch(host)) is None:
        return False
    in_brackets, name = found.groups()
    if in_brackets is None and name.lower() in {"localhost", own.lower()} - {""}:
        return True
    try:
        _ = IPv4Address(name) if in_brackets is None else IPv6Address(in_brackets)
    except ValueError:
        return False
    return True


def is_loopback(peer: str | None) -> bool:
    """Return whether a peer's address is on this machine, as through `kubectl port-forward`."""
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
