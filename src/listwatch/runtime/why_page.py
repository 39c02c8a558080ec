"""Answers `listwatch why` at the health port, as JSON."""

from typing import TYPE_CHECKING

import msgspec

from listwatch.clock import Clock
from listwatch.runtime.key_state import KeyStates
from listwatch.runtime.why import Answer, KeyState

if TYPE_CHECKING:
    from aiohttp import web

#: The path of the answers.
PATH = "/debug/why"


class KeyAnswer(msgspec.Struct, frozen=True):
    """One key's answer, and what it rests on."""

    state: KeyState
    answer: Answer


class WhyDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `listwatch why -o json` prints.

    Attributes:
        manager: its name.
        time: seconds since 1970.
        keys: the answers; without a key those in trouble, the worst first.
        similar: known keys like the one asked for, if it is unknown.
    """

    manager: str
    time: float
    keys: list[KeyAnswer]
    similar: list[str] = []


class WhyPage:
    """Serves what is known about keys; for the event loop of the manager.

    Args:
        manager: its name.
        states: knows the keys.
        clock: dates the answers.
    """

    def __init__(self, manager: str, states: KeyStates, clock: Clock) -> None:
        self._manager = manager
        self._states = states
        self._clock = clock

    def document(self, key: str, reconciler: str = "") -> WhyDocument:
        """Return the answers about a key; without one, about the keys in trouble."""
        found = self._states.about(key, reconciler) if key else self._states.troubled()
        return WhyDocument(
            manager=self._manager,
            time=self._clock.time(),
            keys=[KeyAnswer(state, answer) for state, answer in found],
            similar=self._states.similar(key) if key and not found else [],
        )

    async def handle(self, request: "web.Request") -> "web.Response":
        """Answer a request with the parameters `key` and `reconciler`."""
        from aiohttp import web  # noqa: PLC0415 - slow to load

        query = request.query
        found = self.document(query.get("key", ""), query.get("reconciler", ""))
        return web.Response(
            body=msgspec.json.encode(found),
            content_type="application/json",
            headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
        )
