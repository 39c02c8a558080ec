"""A recorder of events for tests: what a real one would have written."""

from typing import Any, Literal

from listwatch.clock import Clock
from listwatch.runtime.event_bodies import Reporter, ReportsEvents, count_patch, event_body
from listwatch.runtime.event_correlation import (
    Count,
    Create,
    EventLimits,
    Occurrence,
    WrittenEvent,
    make_correlator,
)


class FakeRecorder(ReportsEvents):
    """Takes the place of an `EventRecorder`, and keeps its events in memory, at once.

    Repetitions are counted, similar messages combined and floods cut as by a real one. For one
    thread at a time.

    Args:
        component: the reporting controller.
        api: as for `EventRecorder`.
        limits: as for `EventRecorder`.
        clock: the time.
    """

    def __init__(
        self,
        component: str = "test",
        *,
        api: Literal["events.k8s.io/v1", "v1"] = "events.k8s.io/v1",
        limits: EventLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock or Clock())
        self._reporter = Reporter(component, "fake", api)
        self._correlator = make_correlator(api, limits)
        self._by_name: dict[str, dict[str, Any]] = {}
        #: Number of events that were dropped because there were too many.
        self.spam = 0

    def _report(self, occurrence: Occurrence) -> None:
        decision = self._correlator.decide(occurrence)
        if isinstance(decision, Create):
            self._create(decision)
        elif isinstance(decision, Count):
            event = self._by_name[decision.written.name]
            for field, value in count_patch(self._reporter.api, decision).items():
                event[field] = value
            decision.written.written_count = decision.written.count
        else:
            self.spam += decision.spam

    def _create(self, what: Create) -> None:
        occurrence = what.occurrence
        name = f"{occurrence.regarding.name}.{len(self._by_name) + 1}"
        namespace = occurrence.regarding.namespace or "default"
        first = occurrence.time if what.first_time is None else what.first_time
        metadata = {"name": name, "namespace": namespace}
        self._by_name[name] = event_body(self._reporter, metadata, what, first)
        self._correlator.wrote(
            what.key,
            WrittenEvent(
                namespace,
                name,
                what.count,
                first,
                occurrence.time,
                occurrence.regarding.identity,
                last_at=occurrence.at,
                written_at=occurrence.at,
                written_count=what.count,
            ),
        )

    @property
    def events(self) -> list[dict[str, Any]]:
        """The written events in order, as the server would have them."""
        return list(self._by_name.values())

    @property
    def lines(self) -> list[str]:
        """The written events in order, each as "type reason message"."""
        note = "message" if self._reporter.api == "v1" else "note"
        return [f"{event['type']} {event['reason']} {event[note]}" for event in self.events]
