"""Keeps the managers of a file from running while a command loads the file."""

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from listwatch.errors import ConfigError
from listwatch.printable import printable

_logger = logging.getLogger(__name__)


class Loading:
    """The loading of one file: its managers don't run, except the one chosen at the end.

    Args:
        path: the file.
        namespaces: what its managers watch unless a source says otherwise; none for all.
    """

    def __init__(self, path: Path, namespaces: Sequence[str] = ()) -> None:
        self.path = path
        self.namespaces = namespaces
        #: The managers that the file tried to run, in order.
        self.asked: list[object] = []
        self.chosen: object = None

    def holds(self, app: object, call: str) -> bool:
        """Return whether the manager must not run; if so, log that the file tried.

        Args:
            app: the manager.
            call: the call in the file, such as "app.run()".
        """
        if app is self.chosen:
            return False
        self.asked.append(app)
        _logger.warning(
            "%s: %s does nothing while the file is loaded", printable(str(self.path)), call
        )
        return True

    def refuse(self, app: object, call: str) -> None:
        """Return if the manager may run.

        Raises:
            ConfigError: it may not, and the file would continue as if it ran.
        """
        if app is not self.chosen:
            raise ConfigError(
                f"{self.path}: {call} can't run while the file is loaded: put it below "
                '`if __name__ == "__main__":`'
            )


#: The file being loaded.
current_loading: Final[ContextVar[Loading | None]] = ContextVar("current_loading", default=None)
