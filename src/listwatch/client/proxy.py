"""Chooses the proxy to an API server."""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from listwatch.client.config import Config
from listwatch.errors import ConfigError

_SCHEMES: Final = ("http", "https", "socks5", "socks5h")


def proxy_for(config: Config, url: str, environ: Mapping[str, str]) -> str:
    """Return the proxy's URL for a server URL, "" for none.

    Uses the configuration's proxy-url, otherwise HTTPS_PROXY, HTTP_PROXY and NO_PROXY (or the same
    in lower case), by the rules of Go's `golang.org/x/net/http/httpproxy`.

    Raises:
        ConfigError: the proxy's URL is invalid; the message shows no password.
    """
    where = config.source or "the configuration"
    if config.proxy_url:
        return _checked(config.proxy_url, f"{where}: proxy-url")
    parts = urlsplit(url)
    is_plain = parts.scheme == "http"
    name = "HTTP_PROXY" if is_plain else "HTTPS_PROXY"
    found = _either(environ, name)
    port = parts.port or (80 if is_plain else 443)
    if not found or _is_excluded(parts.hostname or "", port, _either(environ, "NO_PROXY")):
        return ""
    return _checked(found if "://" in found else f"http://{found}", name)


def _either(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower()) or ""


def _checked(url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        valid = parts.scheme in _SCHEMES and bool(host) and parts.port != 0 and url.isprintable()
        host.encode("ascii" if ":" in host else "idna")  # a name's encoding has limits
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{where} is not a URL of the form {'|'.join(_SCHEMES[:3])}://HOST:PORT")
    return url


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in no_proxy.lower().split(","):
        name, entry_port = _split_port(entry.strip())
        if entry_port is not None and entry_port != port:
            continue
        if name == "*":
            return True
        if address is not None:
            try:
                if address in ipaddress.ip_network(name, strict=False):
                    return True
            except ValueError:
                continue
        elif name:
            domain = name.removeprefix("*")
            if host.endswith(domain if domain.startswith(".") else f".{domain}") or host == domain:
                return True
    return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        name, _, port = entry.partition(":")
    else:
        return entry, None
    return name, int(port) if port.isdigit() else None
