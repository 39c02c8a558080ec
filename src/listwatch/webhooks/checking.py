"""Finds out why an API server can't call webhooks: address, certificate, authorities."""

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from listwatch.clock import Clock
from listwatch.errors import NotFoundError
from listwatch.webhooks.certificates import CertificateError, read_authorities, utc
from listwatch.webhooks.handshakes import HandshakeError, shake_hands
from listwatch.webhooks.registration import DEFINITIONS, GROUP, MUTATING, VALIDATING

if TYPE_CHECKING:
    from listwatch.client.client import Client

#: Seconds before its end at which a certificate counts as a problem: a renewal has failed by then.
_SOON: Final = 7 * 24 * 3600.0
_SLICES: Final = "endpointslices.discovery.k8s.io"
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


class Finding(msgspec.Struct, frozen=True):
    """The state of one webhook.

    Attributes:
        configuration: the kind and name of its configuration.
        webhook: its name; empty for the conversion of a definition.
        words: what is wrong and what to do, or until when its certificate is valid.
        ok: the API server can call it.
    """

    configuration: str
    webhook: str
    words: str
    ok: bool

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.configuration, self.webhook) if part)
        return f"{where}: {'ok, ' if self.ok else ''}{self.words}"


class _Target(msgspec.Struct, frozen=True):
    configuration: str
    webhook: str
    config: Mapping[str, Any]


async def check_webhooks(
    client: "Client",
    names: Collection[str] = (),
    *,
    address: tuple[str, int] | None = None,
    clock: Clock | None = None,
) -> list[Finding]:
    """Check webhook configurations and the conversions of definitions, from this machine.

    Connects as the API server does, and sends nothing.

    Args:
        client: reads the configurations.
        names: of configurations and definitions; none for all.
        address: connect to this host and port instead, such as those of `kubectl port-forward`.
        clock: the time.

    Raises:
        NotFoundError: no configuration has one of the names.
        ConfigError: the extra `webhooks` is not installed.
        ListWatchError: the configurations can't be read.
    """
    clock = clock if clock is not None else Clock()
    targets = [target async for target in _targets(client)]
    known = {target.configuration.partition(" ")[2] for target in targets}
    for name in names:
        if name not in known:
            raise NotFoundError(f"no webhook configuration or conversion is named {name}")
    checker = _Checker(client, address, clock)
    return [
        await checker.check(target)
        for target in targets
        if not names or target.configuration.partition(" ")[2] in names
    ]


async def _targets(client: "Client") -> Any:
    for resource in (VALIDATING, MUTATING):
        kind = resource.removesuffix("s")
        for found in (await client.list(f"{resource}.{GROUP}")).items:
            for webhook in found.get("webhooks") or ():
                name = str(webhook.get("name"))
                yield _Target(f"{kind} {found.name}", name, webhook.get("clientConfig") or {})
    for found in (await client.list(DEFINITIONS)).items:
        conversion = found["spec"].get("conversion") or {}
        if conversion.get("strategy") == "Webhook":
            config = (conversion.get("webhook") or {}).get("clientConfig") or {}
            yield _Target(f"customresourcedefinition {found.name}", "", config)


class _Checker:
    def __init__(self, client: "Client", address: tuple[str, int] | None, clock: Clock) -> None:
        self._client = client
        self._address = address
        self._clock = clock

    async def check(self, target: _Target) -> Finding:
        try:
            words = await self._until(target.config)
        except HandshakeError as error:
            return Finding(target.configuration, target.webhook, str(error), ok=False)
        return Finding(target.configuration, target.webhook, words, ok=True)

    async def _until(self, config: Mapping[str, Any]) -> str:
        service = config.get("service")
        bundle = self._bundle(config.get("caBundle") or "", is_public=service is None)
        hint = ""
        if service is None:
            url = urlsplit(config.get("url") or "")
            host, port = url.hostname or "", url.port or 443
            name = host
        else:
            await self._check_service(service)
            host, port = f"{service['name']}.{service['namespace']}.svc", service.get("port") or 443
            name = host
            hint = (
                "; a service is reachable only from within the cluster: run this command in a pod, "
                "or give the address of a port-forward with --address"
            )
        if self._address is not None:
            host, port = self._address
        try:
            ends = await shake_hands(host, port, name, bundle, clock=self._clock)
        except HandshakeError as error:
            unknown = hint and self._address is None and "is unknown here" in str(error)
            raise HandshakeError(f"{error}{hint}" if unknown else str(error)) from None
        if ends - self._clock.time() < _SOON:
            raise HandshakeError(
                f"the certificate expires soon, at {utc(ends)}: who should have renewed it?"
            )
        return f"until {utc(ends)}"

    def _bundle(self, text: str, *, is_public: bool) -> bytes:
        """Return the authorities in PEM; nothing for public ones, if they can sign."""
        if not text and is_public:
            return b""
        if not text:
            raise HandshakeError(
                "caBundle is empty, and no public authority signs for a service: put the authority "
                "of the server's certificate into it"
            )
        try:
            bundle = base64.b64decode(text)
            authorities = read_authorities(bundle)
        except (CertificateError, binascii.Error, ValueError):
            authorities = ()
        if not authorities:
            raise HandshakeError("caBundle has no certificate in PEM: put one into it")
        ends = max(authority.not_after for authority in authorities)
        if ends <= self._clock.time():
            raise HandshakeError(
                f"every authority in caBundle has expired, the last at {utc(ends)}: put the "
                "present one into it"
            )
        return bundle

    async def _check_service(self, service: Mapping[str, Any]) -> None:
        namespace, name = str(service.get("namespace")), str(service.get("name"))
        port = service.get("port") or 443
        where = f"service {namespace}/{name}"
        try:
            found = await self._client.get("services", name, namespace)
        except NotFoundError:
            raise HandshakeError(
                f"{where} does not exist: create it, or correct the configuration"
            ) from None
        ports = [one.get("port") for one in found["spec"].get("ports") or ()]
        if port not in ports:
            shown = ", ".join(map(str, ports)) or "none"
            raise HandshakeError(f"{where} has no port {port}, only {shown}: correct one of them")
        selector = f"{_SERVICE_LABEL}={name}"
        slices = await self._client.list(_SLICES, namespace, label_selector=selector)
        if not any(map(_is_ready, _endpoints(slices.items))):
            raise HandshakeError(
                f"{where} has no ready endpoint: do pods that its selector matches run, and are "
                "they ready?"
            )


def _endpoints(slices: Any) -> Iterator[Mapping[str, Any]]:
    for one in slices:
        yield from one.get("endpoints") or ()


def _is_ready(endpoint: Mapping[str, Any]) -> bool:
    # An unknown state counts as ready, as for the proxies.
    return (endpoint.get("conditions") or {}).get("ready") is not False
