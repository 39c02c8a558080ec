"""Keeps the certificate and the configurations of webhooks as they should be, while they serve."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from listwatch.backoff import WEBHOOKS
from listwatch.clock import Clock
from listwatch.errors import ConflictError, ListWatchError, NotFoundError
from listwatch.webhooks.certificates import Authority, ServingCertificate
from listwatch.webhooks.registration import Registrar
from listwatch.webhooks.rotation import Bundle, Rotation
from listwatch.webhooks.secret import SecretStore

_logger = logging.getLogger(__name__)

#: Seconds between two looks at the certificate and the configurations.
INTERVAL: Final = 30.0
#: Looks that may follow each other at once; a first start needs three.
_AT_ONCE: Final = 8


class Source(Protocol):
    """Where the certificate comes from."""

    async def look(
        self, bundles: list[Bundle], *, leads: bool
    ) -> tuple[ServingCertificate | None, tuple[Authority, ...] | None] | None:
        """Return the certificate to serve, and the authorities to publish.

        Args:
            bundles: those published, read before.
            leads: this replica has the lease.

        Returns:
            The certificate, None to keep the one that serves; and the authorities, None to leave
            the published ones as they are. Or None to be asked again at once.
        """
        ...


class UnstableError(ListWatchError):
    """What was written is not there when it is read."""


class SecretSource:
    """Certificates made by the replicas, in a Secret.

    Args:
        store: the Secret.
        rotation: this replica's part.
        clock: the time.
    """

    def __init__(self, store: SecretStore, rotation: Rotation, clock: Clock) -> None:
        self._store = store
        self._rotation = rotation
        self._clock = clock

    async def look(
        self, bundles: list[Bundle], *, leads: bool
    ) -> tuple[ServingCertificate | None, tuple[Authority, ...] | None] | None:
        """Take one step of the rotation; see `Source`."""
        before = await self._store.read()
        step = self._rotation.step(
            before.stored,
            bundles,
            leads=leads,
            time=self._clock.time(),
            now=self._clock.now(),
        )
        if step.store is not None:
            await self._store.write(before, step.store)
            return None
        return step.serve, step.bundle


class Upkeep:
    """Looks regularly, and at once after its own changes. For one event loop.

    Args:
        source: of the certificate.
        registrar: of the configurations.
        serve: called with each certificate to serve from then on.
        clock: the time.
    """

    def __init__(
        self,
        source: Source,
        registrar: Registrar,
        serve: Callable[[ServingCertificate], object],
        *,
        clock: Clock,
    ) -> None:
        self._source = source
        self._registrar = registrar
        self._serve = serve
        self._clock = clock
        self._again = asyncio.Event()
        #: Whether this replica has the lease.
        self.leads = False
        #: What serves; None before there is a certificate.
        self.certificate: ServingCertificate | None = None
        #: Set once there is a certificate.
        self.serving = asyncio.Event()
        #: Set once everything is published.
        self.registered = asyncio.Event()
        #: Why the last look failed; empty if it did not.
        self.problem = ""

    def lead(self, *, leads: bool) -> None:
        """Note whether this replica has the lease, and look again."""
        self.leads = leads
        self._again.set()

    async def run(self) -> None:
        """Look until cancelled; a failure is logged, and tried again later."""
        failures = looks = 0
        while True:
            seconds = INTERVAL
            looks += 1
            # What was noted up to now is seen by this look, so a failure waits for its delay.
            self._again.clear()
            try:
                if not await self._look():
                    if looks < _AT_ONCE:
                        continue
                    # Otherwise two programs that undo each other would write as fast as they can.
                    raise UnstableError(
                        "what was written is not kept as it was: does another program change the "
                        "configurations or the Secret, or is the server too old for an option?"
                    )
                self.problem, failures = "", 0
            except (ConflictError, NotFoundError):
                # Another replica was faster, or somebody deleted something.
                seconds = WEBHOOKS.delay(0)
            except (ListWatchError, TimeoutError) as error:
                self.problem = str(error) or type(error).__name__
                seconds = WEBHOOKS.delay(failures)
                failures += 1
                _logger.warning("webhooks: %s; next try in %.0f s", self.problem, seconds)
            looks = 0
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with self._clock.timeout(seconds):
                await self._again.wait()
        except TimeoutError:
            return

    async def _look(self) -> bool:
        """Take one step; return whether there is nothing more to do now."""
        published = await self._registrar.read()
        bundles: list[Bundle] = [*published.bundles(self._registrar.wanted)]
        leads = self.leads
        found = await self._source.look(bundles, leads=leads)
        if found is None:
            return False
        certificate, authorities = found
        if certificate is not None:
            self._serve(certificate)
            self.certificate = certificate
            self.serving.set()
            _logger.info("webhooks serve a certificate %r", certificate)
        if leads:
            changes = await self._registrar.publish(published, authorities)
            if changes:
                _logger.info("webhooks: %d configurations written", changes)
                return False
            self._note(is_registered=True)
        else:
            self._note(is_registered=self._is_registered(bundles))
        return True

    def _note(self, *, is_registered: bool) -> None:
        if is_registered and self.certificate is not None:
            self.registered.set()

    def _is_registered(self, bundles: list[Bundle]) -> bool:
        """Return whether what others have published trusts this replica."""
        if not bundles:
            return not self._registrar.wanted.creates
        if self.certificate is None:
            return False
        authority = self.certificate.authority
        return not authority.pem or all(authority in bundle for bundle in bundles)
