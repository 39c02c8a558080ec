"""Finds out, without a request, when a server can be reached again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from ssl import SSLCertVerificationError, SSLContext, SSLEOFError, SSLError
from typing import Final

from listwatch.backoff import CONNECT, CONNECT_LIMIT
from listwatch.clock import Clock
from listwatch.errors import DisconnectedError

#: Seconds in which a balancer without servers closes what it has accepted.
_LINGER_SECONDS: Final = 0.25


class Prober:
    """Connects to a server until that works: one at a time, for all who wait for it.

    A connection that can't be made costs the server no request. Belongs to one event loop; any
    number of tasks may wait, and one of them does the work.

    Args:
        connect: connects once; raises DisconnectedError where that fails.
        clock: time.
        rng: chance.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[None]],
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads tries, hides nothing
        self._turn = asyncio.Lock()
        self._rounds = 0
        self._was_away = False
        #: The server could not be reached when it was tried last.
        self._is_away = False

    async def wait(self) -> bool:
        """Return when the server can be reached; whether it could not before."""
        rounds = self._rounds
        async with self._turn:
            if rounds == self._rounds:  # nobody has found out meanwhile
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
    """A connection over which nothing is said."""

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
    """Connect, TLS included, and see that the other side keeps the connection for a moment.

    A certificate that is not trusted is no reason to wait: a request will tell.

    Raises:
        DisconnectedError: nobody listens, or the connection is closed at once.
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
        if transport is None:  # the system's own limit
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
