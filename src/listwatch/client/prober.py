"""Finds out, without a request, when a server is reachable again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from ssl import SSLCertVerificationError, SSLContext, SSLEOFError, SSLError
from typing import Final

from listwatch.backoff import CONNECT, CONNECT_LIMIT
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError

#: Seconds within which a load balancer without backends closes an accepted connection.
_LINGER_SECONDS: Final = 0.25


class Prober:
    """Connects to a server until that succeeds, once for all tasks that wait.

    A failed connection costs the server no request. For one event loop; any number of tasks may
    wait, and one of them connects.

    Args:
        connect: connects once; raises DisconnectedError on failure.
        clock: the time.
        rng: source of randomness.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[None]],
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads tries, not cryptography
        self._turn = asyncio.Lock()
        self._rounds = 0
        self._was_away = False
        #: The last attempt could not reach the server.
        self._is_away = False

    async def wait(self) -> bool:
        """Return when the server is reachable; True if it was not before."""
        rounds = self._rounds
        async with self._turn:
            if rounds == self._rounds:  # no other task has found out since
                await self._try_until_reached()
            return self._was_away

    async def _try_until_reached(self) -> None:
        failures = timeouts = 0
        while True:
            try:
                async with self._clock.timeout(CONNECT_LIMIT.delay(timeouts)):
                    await self._connect()
            except TimeoutError:
                timeouts += 1
            except DisconnectedError:
                timeouts = 0
            else:
                self._was_away, self._is_away = self._is_away, False
                self._rounds += 1
                return
            self._is_away = True
            await self._clock.sleep(CONNECT.delay(failures, self._rng))
            failures += 1


class _Probe(asyncio.Protocol):
    """A connection on which nothing is sent."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost.set()


async def try_to_connect(
    host: str,
    port: int,
    *,
    clock: Clock,
    ssl: SSLContext | None = None,
    server_hostname: str | None = None,
    unix_socket: str | None = None,
) -> None:
    """Connect, with TLS, and check that the peer keeps the connection for a moment.

    Does not wait because of an untrusted certificate: a request will report that.

    Raises:
        DisconnectedError: nothing listens, or the connection is closed at once.
    """
    loop = asyncio.get_running_loop()
    transport: asyncio.BaseTransport | None = None
    try:
        if unix_socket is not None:
            transport, probe = await loop.create_unix_connection(
                _Probe, unix_socket, ssl=ssl, server_hostname=server_hostname
            )
        else:
            transport, probe = await loop.create_connection(
                _Probe, host, port, ssl=ssl, server_hostname=server_hostname
            )
        async with clock.timeout(_LINGER_SECONDS):
            await probe.lost.wait()
        raise DisconnectedError("the server closes connections immediately")
    except TimeoutError as error:
        if transport is None:  # the operating system's limit
            raise DisconnectedError("no connection in time") from error
    except SSLCertVerificationError:
        return
    except SSLEOFError as error:
        raise DisconnectedError("the server closes connections immediately") from error
    except SSLError:
        return
    except OSError as error:
        raise DisconnectedError(f"no connection: {error}") from error
    finally:
        if transport is not None:
            transport.abort()  # type: ignore[attr-defined]  # every event loop's transport has it
