"""How clients reach their server where that is decided from outside, as in a simulation."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import msgspec

from listwatch.client.config import Config

if TYPE_CHECKING:
    from listwatch.client.connections import Connections


class Reach:
    """The server and the connections of every client that is not given connections.

    Args:
        config: replaces the given or loaded configuration; a given one keeps its namespace and
            user agent.
        connections: send the requests.
    """

    def __init__(self, config: Config, connections: "Connections") -> None:
        self.config = config
        self.connections = connections

    def config_like(self, config: Config) -> Config:
        """Return the configuration to use instead of another."""
        return msgspec.structs.replace(
            self.config, namespace=config.namespace, user_agent=config.user_agent
        )


#: None to use the given or loaded configuration.
current_reach: Final[ContextVar[Reach | None]] = ContextVar("current_reach", default=None)
