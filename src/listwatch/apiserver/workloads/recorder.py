"""Writes Events as clients do: counts repeated ones, drops too many, and deletes old ones."""

import logging
from datetime import UTC, datetime

import msgspec

from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.deletion import DeleteOptions, delete
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry
from listwatch.apiserver.workloads.events import Told
from listwatch.apiserver.workloads.observed import Object
from listwatch.clock import Clock
from listwatch.errors import StatusError

_log = logging.getLogger(__name__)

#: Events of a component about one object at once, and seconds until one more may come, as in
#: `client-go/tools/record/events_cache.go`.
_BURST, _REFILL_SECONDS = 25, 300.0
#: Seconds after its last occurrence until an event is deleted: a server's `--event-ttl`.
_LIFE_SECONDS = 3600.0

_Key = tuple[str, str, str, str, str]


class _Known(msgspec.Struct):
    """An event that was written, and when it last happened."""

    namespace: str
    name: str
    last: float


class Recorder:
    """Writes events to the store. For the event loop of the store.

    Args:
        registry: used to write.
        resource: the events of the core group.
        clock: the time.
    """

    def __init__(self, registry: Registry, resource: APIResource, clock: Clock) -> None:
        self._registry = registry
        self._resource = resource
        self._clock = clock
        self._number = 0
        #: what was written, in order of the last occurrence
        self._known: dict[_Key, _Known] = {}
        #: the tokens left for a component and object, and since when
        self._tokens: dict[tuple[str, str], tuple[float, float]] = {}

    def tell(self, told: Told, component: str, host: str = "") -> None:
        """Write an event, or count it if it has happened before.

        A refusal is logged: like a client's, events may get lost.

        Args:
            told: the event.
            component: the program that tells it.
            host: the node on which it runs; "" if it does not matter.
        """
        now = self._clock.now()
        self._expire(now)
        about = told.about
        uid = about.get("uid", "")
        key = uid, about.get("fieldPath", ""), component, told.reason, told.message
        if not self._has_token((component, uid), now):
            return
        try:
            known = self._known.pop(key, None)
            if known is None or not self._count(known):
                known = self._create(told, component, host)
            known.last = now
            self._known[key] = known
        except StatusError as error:  # such as: the namespace is being deleted
            _log.debug("event %s of %s is lost: %s", told.reason, about.get("name"), error)

    def _has_token(self, source: tuple[str, str], now: float) -> bool:
        tokens, since = self._tokens.pop(source, (float(_BURST), now))
        tokens = min(float(_BURST), tokens + (now - since) / _REFILL_SECONDS)
        self._tokens[source] = max(0.0, tokens - 1) if tokens >= 1 else tokens, now
        return tokens >= 1

    def _expire(self, now: float) -> None:
        while self._known:
            key = next(iter(self._known))
            known = self._known[key]
            if now - known.last < _LIFE_SECONDS:
                break
            del self._known[key]
            if self._registry.find(self._resource, known.namespace, known.name) is not None:
                options = DeleteOptions()
                delete(self._registry, self._resource, known.namespace, known.name, options)
        while self._tokens:
            source = next(iter(self._tokens))
            if now - self._tokens[source][1] < _BURST * _REFILL_SECONDS:
                break
            del self._tokens[source]

    def _create(self, told: Told, component: str, host: str) -> _Known:
        namespace = told.about.get("namespace") or "default"
        self._number += 1
        moment = int(self._clock.time() * 1e9) + self._number
        name = f"{told.about['name'][:230]}.{moment:x}"
        stamp = self._stamp()
        event: Object = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": dict(told.about),
            "reason": told.reason,
            "message": told.message[:1024],
            "source": {"component": component, **({"host": host} if host else {})},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "type": "Warning" if told.is_warning else "Normal",
            "eventTime": None,
            "reportingComponent": component,
            "reportingInstance": host,
        }
        self._registry.create(self._resource, namespace, event, self._context(component))
        return _Known(namespace, name, 0.0)

    def _count(self, known: _Known) -> bool:
        """Return whether an event still exists, and count it once more."""
        if self._registry.find(self._resource, known.namespace, known.name) is None:
            return False
        stamp = self._stamp()

        def produce(old: Object | None, _: Entry | None) -> Object:
            event = old or {}
            return {**event, "count": event.get("count", 0) + 1, "lastTimestamp": stamp}

        context = self._context("kube-controller-manager")
        self._registry.update(
            self._resource, known.namespace, known.name, produce, context, is_put=False
        )
        return True

    @staticmethod
    def _context(component: str) -> WriteContext:
        controller = component.endswith("-controller")
        return WriteContext(manager="kube-controller-manager" if controller else component)

    def _stamp(self) -> str:
        return datetime.fromtimestamp(int(self._clock.time()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
