"""Where webhooks are served and reached, and whose certificate they have."""

import ipaddress
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from listwatch.errors import ConfigError
from listwatch.selector import subdomain_problems
from listwatch.webhooks.certificates import LIFETIME
from listwatch.webhooks.registration import Address

#: The usual port of webhooks in a pod.
PORT: Final = 9443
_SHORTEST: Final = 3600.0
#: A cluster's proxies take a second or two to leave out a pod that ends.
_LINGER: Final = 5.0
_IN_POD: Final = "KUBERNETES_SERVICE_HOST"
_LOOPBACK: Final = "127.0.0.1"
_SERVICE: Final = re.compile(r"(?:[^/]+/)?[^/]+")


class WebhookOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a manager serves its webhooks.

    An API server on this machine reaches them at a free port of 127.0.0.1, any other one through a
    service. So tests, trials and pods need no options.

    Attributes:
        service: the service in front of them, as "name" or "namespace/name"; by default in a pod
            the manager's name, in its namespace.
        service_port: port of the service.
        url: the API server reaches them at this URL instead, such as "https://hooks.example.com".
        host: address to listen on; by default all with a service or URL, otherwise 127.0.0.1.
        port: port to listen on, 0 for a free one; by default 9443 with a service or URL.
        secret: name of the Secret with the certificate, in the manager's namespace; by default the
            manager's name with "-webhooks".
        lifetime: seconds for which a certificate in the Secret is valid, at least an hour; it is
            renewed after two thirds.
        certificates: directory with tls.crt, tls.key and, if the manager is to publish it, ca.crt,
            such as a mounted Secret of cert-manager; used instead of the Secret, and read again
            after a change.
        linger: seconds to go on serving after everything else has stopped, while services still
            send requests; by default 5 in a pod, otherwise 0.
        register: create the webhook configurations, keep them as declared, and delete those without
            hooks. False leaves that to manifests; their `caBundle` is set all the same.
        include_own_namespace: send requests in the manager's own namespace to the hooks too. A
            broken hook can then prevent its own repair.
    """

    service: str = ""
    service_port: int = 443
    url: str = ""
    host: str | None = None
    port: int | None = None
    secret: str = ""
    lifetime: float = LIFETIME
    certificates: str | os.PathLike[str] = ""
    linger: float | None = None
    register: bool = True
    include_own_namespace: bool = False


class Place(msgspec.Struct, frozen=True):
    """The options with their defaults.

    Attributes:
        address: where the API server reaches the server; its URL lacks the port if `is_local`.
        names: host names and addresses of the server.
        host: to listen on.
        port: to listen on.
        is_local: only for API servers on this machine.
        excluded: namespaces whose objects the hooks do not get.
        certificates: the directory of the certificate; None for the Secret.
        linger: seconds to go on serving at the end.
    """

    address: Address
    names: tuple[str, ...]
    host: str
    port: int
    is_local: bool
    excluded: tuple[str, ...]
    certificates: Path | None
    linger: float


def place_of(options: WebhookOptions, app: str, namespace: str, server: str) -> Place:
    """Return the options of one manager with their defaults.

    Args:
        options: as given.
        app: the manager's name.
        namespace: the manager's namespace.
        server: URL of the API server.

    Raises:
        ConfigError: an option is invalid, or the API server can't reach the webhooks.
    """
    if options.service and options.url:
        raise ConfigError("give WebhookOptions either service= or url=, not both")
    if options.lifetime < _SHORTEST:
        raise ConfigError(f"WebhookOptions: lifetime {options.lifetime:g} is less than an hour")
    directory = Path(options.certificates) if options.certificates else None
    is_local = not options.service and not options.url and _is_loopback(server)
    is_pod = _IN_POD in os.environ and not options.url
    service = options.service or (app if is_pod and not is_local else "")
    names: tuple[str, ...]
    excluded = () if options.include_own_namespace else (namespace,)
    if service:
        if not _SERVICE.fullmatch(service):
            raise ConfigError(
                f"WebhookOptions: {service!r} is no service: write name or namespace/name"
            )
        where, _, name = service.rpartition("/")
        where = where or namespace
        if problems := [*subdomain_problems(name), *subdomain_problems(where)]:
            raise ConfigError(f"WebhookOptions: {service!r} is no service: {problems[0]}")
        address = Address(namespace=where, service=name, port=options.service_port)
        names = (f"{name}.{where}.svc", f"{name}.{where}.svc.cluster.local")
    elif options.url:
        host = _host_of(options.url)
        address, names = Address(url=options.url.rstrip("/")), (host,)
    elif is_local:
        return Place(
            Address(url=f"https://{_LOOPBACK}"),
            (_LOOPBACK, "localhost"),
            _LOOPBACK if options.host is None else options.host,
            options.port or 0,
            is_local=True,
            # A program outside the cluster can't lock itself out.
            excluded=(),
            certificates=directory,
            linger=options.linger or 0.0,
        )
    else:
        raise ConfigError(
            f"the API server at {server} can't reach webhooks on {_LOOPBACK}: give the manager "
            'webhooks=WebhookOptions(service="NAME"), the service in front of them, or url='
        )
    host = "" if options.host is None else options.host
    port = PORT if options.port is None else options.port
    linger = (
        (_LINGER if _IN_POD in os.environ else 0.0) if options.linger is None else options.linger
    )
    return Place(address, names, host, port, False, excluded, directory, linger)


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme != "https" or parts.query or parts.fragment or parts.username:
        raise ConfigError(
            f"WebhookOptions: {url!r} is no URL of webhooks: write https://HOST:PORT, without user "
            "or query"
        )
    return host


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
