"""The file of address pools: read at the start, and again when it changes."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from listwatch.clock import Clock
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.pools import PoolError, load_pools
from listwatch.printable import printable

_logger = logging.getLogger(__name__)

#: Seconds between checks of the file. A watch would miss changes of a mounted ConfigMap, which
#: replace a link.
LOOK_SECONDS: Final = 2.0


class PoolFile:
    """A file of address pools.

    Args:
        path: of the YAML file.

    Raises:
        PoolError: the file is unreadable or invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._text = path.read_bytes()
            self.pool = AddressPool(pools=load_pools(self._text))
        except OSError as error:
            raise PoolError(f"{path}: {error.strerror or error}") from None
        except PoolError as error:
            raise PoolError(f"{path}: {error}") from None

    async def follow(self, changed: Callable[[], object], clock: Clock | None = None) -> None:
        """Apply the file to the pool whenever it changes, until cancelled.

        An invalid or missing file is logged once, and the previous pools stay.

        Args:
            changed: called after each change.
            clock: the time.
        """
        clock = clock or Clock()
        problem = ""
        while True:
            await clock.sleep(LOOK_SECONDS)
            try:
                text = await asyncio.to_thread(self._path.read_bytes)
                if text == self._text:
                    problem = ""
                    continue
                self._text = text
                self.pool.set_pools(load_pools(text))
            except (OSError, PoolError) as error:
                words = printable(f"{self._path}: {error}")
                if words != problem:
                    _logger.warning("address pools stay as they were: %s", words)
                problem = words
                continue
            problem = ""
            _logger.info("address pools are read again from %s", self._path)
            changed()
