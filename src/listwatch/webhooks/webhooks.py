"""The webhooks of a manager: what is declared, and how it is served."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING

from listwatch.clock import Clock
from listwatch.errors import ConfigError
from listwatch.webhooks.certificate_files import FileSource
from listwatch.webhooks.certificates import make_certificate, need_cryptography
from listwatch.webhooks.dispatch import Dispatcher, HookStatistics, ReviewHook
from listwatch.webhooks.hooks import AdmissionHook
from listwatch.webhooks.metrics import webhook_metrics
from listwatch.webhooks.options import Place, WebhookOptions, place_of
from listwatch.webhooks.registration import Address, Registrar, Wanted
from listwatch.webhooks.rotation import Rotation
from listwatch.webhooks.secret import SecretStore
from listwatch.webhooks.upkeep import SecretSource, Source, Upkeep

if TYPE_CHECKING:
    from prometheus_client import Metric

    from listwatch.client.client import Client


class Webhooks:
    """The hooks of one manager, and their server while it runs.

    Args:
        app: the manager's name, which the configurations have too.
        options: how the hooks are served.
    """

    def __init__(self, app: str, options: WebhookOptions | None = None) -> None:
        self.app = app
        self.options = WebhookOptions() if options is None else options
        self._hooks: list[ReviewHook] = []
        self._conversions: dict[str, str] = {}
        self._dispatcher: Dispatcher | None = None
        #: Where it is served; None before it runs.
        self.place: Place | None = None
        #: The port that it listens on; 0 before it runs.
        self.port = 0
        #: Keeps certificate and configurations; None before it runs.
        self.upkeep: Upkeep | None = None
        #: Reads and writes the configurations; None before it runs.
        self.registrar: Registrar | None = None

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @property
    def hooks(self) -> list[ReviewHook]:
        """The hooks, in the order of their declaration."""
        return list(self._hooks)

    @property
    def conversions(self) -> dict[str, str]:
        """Paths of the hooks that convert, by the name of their definition."""
        return dict(self._conversions)

    @property
    def secret(self) -> str:
        """Name of the Secret with the certificate; empty if it comes from files."""
        return "" if self.options.certificates else self.options.secret or f"{self.app}-webhooks"

    @property
    def lease(self) -> str:
        """Name of the lease whose holder publishes."""
        return f"{self.app}-webhooks"

    def add(self, hook: ReviewHook, *, definition: str = "") -> None:
        """Declare a hook.

        Args:
            hook: with its own name and path.
            definition: name of the CustomResourceDefinition whose objects it converts; the running
                manager makes the definition call it.

        Raises:
            ConfigError: another hook has its name or path, or the definition has a hook.
        """
        for other in self._hooks:
            if other.name == hook.name or other.path == hook.path:
                raise ConfigError(f"a webhook {hook.name} already exists: give another name=")
        if definition in self._conversions:
            raise ConfigError(f"{definition} has a conversion webhook already")
        if definition:
            self._conversions[definition] = hook.path
        self._hooks.append(hook)

    def statistics(self) -> list[HookStatistics]:
        """Return what each hook has done."""
        return [] if self._dispatcher is None else self._dispatcher.statistics()

    def metrics(self) -> Iterator["Metric"]:
        """Yield the metrics of the hooks and of their certificate."""
        certificate = None if self.upkeep is None else self.upkeep.certificate
        yield from webhook_metrics(
            self.statistics(), None if certificate is None else certificate.not_after
        )

    def wanted(self, place: Place, address: Address | None = None) -> Wanted:
        """Return the configurations to publish.

        Args:
            place: where the hooks are served.
            address: with the port, if the place lacks it.
        """
        return Wanted(
            name=self.app,
            hooks=[hook for hook in self._hooks if isinstance(hook, AdmissionHook)],
            conversions=dict(self._conversions),
            address=place.address if address is None else address,
            excluded=place.excluded,
            creates=self.options.register,
        )

    @contextlib.asynccontextmanager
    async def open(self, client: "Client", namespace: str, clock: Clock) -> AsyncIterator[Upkeep]:
        """Listen, and yield what keeps the certificate; the caller runs that.

        Handshakes fail until there is a certificate.

        Args:
            client: reads and writes the Secret and the configurations.
            namespace: of the manager.
            clock: the time.

        Raises:
            ConfigError: an option is invalid, the address is taken, the API server can't reach this
                process, or the extra `webhooks` is not installed.
        """
        from listwatch.webhooks.server import ReviewServer, ServingContext  # noqa: PLC0415 - loads aiohttp

        need_cryptography()
        place = place_of(self.options, self.app, namespace, client.config.server)
        context = ServingContext()
        dispatcher = self._dispatcher = Dispatcher(self._hooks, clock=clock)
        server = ReviewServer(dispatcher, context, host=place.host, port=place.port, clock=clock)
        try:
            async with server:
                self.place, self.port = place, server.port
                address = place.address
                if place.is_local:
                    address = Address(url=f"{address.url}:{server.port}")
                self.registrar = Registrar(client, self.wanted(place, address))
                self.upkeep = Upkeep(
                    self._source(place, client, namespace, clock),
                    self.registrar,
                    lambda certificate: context.use(certificate.certificate, certificate.key),
                    clock=clock,
                )
                yield self.upkeep
        finally:
            for hook in self._hooks:
                hook.close()

    def _source(self, place: Place, client: "Client", namespace: str, clock: Clock) -> Source:
        if place.certificates is not None:
            return FileSource(place.certificates, clock)
        make = partial(make_certificate, place.names, lifetime=self.options.lifetime)
        rotation = Rotation(place.names, make)
        return SecretSource(SecretStore(client, namespace, self.secret), rotation, clock)
