"""A second API server on another one's store."""

from typing import TYPE_CHECKING

from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.api.routes import Api
from listwatch.apiserver.http.listening import Listening, listen, url_of
from listwatch.apiserver.storage.store import Storage
from listwatch.clock import Clock

if TYPE_CHECKING:
    import ssl


class Replica:
    """One of two API servers on one store, whose watch cache can fall behind.

    Reproduces what a client sees with several API servers behind one address: a list from one
    server, followed by a watch on another that has not reached that version yet. Faults with
    `stale` send single requests here; `start` gives it its own address. For the event loop of its
    server.
    """

    def __init__(
        self,
        store: Storage,
        reader: Reader,
        api: Api,
        host: str,
        clock: Clock,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._api = api
        self._host = host
        self._clock = clock
        self._tls = tls
        self._port = 0
        self._listening: Listening | None = None

    def fall_behind(self, revision: int | None = None) -> None:
        """Stop following the store, now or at an earlier revision in its history.

        Reads that may be stale return the state at that revision, and watches get no later changes.
        Consistent reads and writes use the store.

        Raises:
            ValueError: the history does not reach that revision.
        """
        present = self._store.revision
        if revision is not None and not self._store.compacted <= revision <= present:
            raise ValueError(
                f"no state at revision {revision} is kept; there are those from "
                f"{self._store.compacted} to {present}"
            )
        self._reader.set_stale(present if revision is None else revision)

    def catch_up(self) -> None:
        """Follow the store again; watches get what they missed."""
        self._reader.set_stale(None)

    @property
    def url(self) -> str:
        """Its own URL, after `start`."""
        return url_of(self._host, self._port, "http" if self._tls is None else "https")

    async def start(self) -> None:
        """Listen on its own address; harmless if it already does.

        Raises:
            ConfigError: it can't listen on the address.
        """
        if self._listening is None:
            self._listening = await listen(
                self._api.handle, self._host, self._port, self._clock, self._tls
            )
            self._port = self._listening.port
            self._api.address = f"{self._host}:{self._port}"

    async def stop(self) -> None:
        """Stop listening. The server does this when it stops."""
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.close()
