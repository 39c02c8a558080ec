"""How clients reach their server where that is decided from outside, as in a simulation."""

from contextvars import ContextVar
from typing import Final

import msgspec

from listwatch.client.config import Config
from listwatch.client.connections import Connections


class Reach(msgspec.Struct, frozen=True):
    """The server and the connections of every client made by `Client.from_config`.

    Attributes:
        config: replaces the given or loaded configuration; a given one keeps its namespace.
        connections: send the requests.
    """

    config: Config
    connections: Connections


#: None to use the given or loaded configuration.
current_reach: Final[ContextVar[Reach | None]] = ContextVar("current_reach", default=None)
