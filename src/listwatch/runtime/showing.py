"""What a manager shows at its health port: checks, metrics, and pages about its keys."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from listwatch.runtime.health import Check, HealthServer, Page, checked
from listwatch.runtime.key_state import KeyStates, Leadership
from listwatch.runtime.metrics import Measured, make_registry
from listwatch.runtime.sharing import ShareMember
from listwatch.runtime.ui_page import UiPage
from listwatch.runtime.why_page import PATH as WHY_PATH
from listwatch.runtime.why_page import WhyPage

if TYPE_CHECKING:
    from prometheus_client import Metric

    from listwatch.client.client import Client
    from listwatch.clock import Clock
    from listwatch.runtime.caches import Cache, Caches
    from listwatch.runtime.events import EventRecorder
    from listwatch.runtime.leader_election import LeaderElector
    from listwatch.runtime.parts import Parts
    from listwatch.runtime.reconciler import Reconciler
    from listwatch.runtime.serving_webhooks import WebhookServing
    from listwatch.webhooks.webhooks import Webhooks


class Showing:
    """Collects what there is to show, and makes the server that shows it.

    Args:
        name: of the manager.
        host: the address of the server.
        port: 0 for a free port, None for no server.
        ui: show the page /ui also to other machines.
        parts: the running parts, whose failure is shown.
        caches: of the reconcilers.
        reconcilers: all of them; more may be added.
        webhooks: of the manager.
        webhook_serving: their state.
        leads: returns whether the reconcilers run here.
        clock: the time.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int | None,
        ui: bool,
        parts: "Parts",
        caches: "Caches",
        reconcilers: "Sequence[Reconciler[Any]]",
        webhooks: "Webhooks",
        webhook_serving: "WebhookServing",
        leads: Callable[[], bool],
        clock: "Clock",
    ) -> None:
        self._name = name
        #: The address of the server.
        self.host = host
        #: Its port; 0 for a free one, None for no server.
        self.port = port
        #: Serve the page also to other machines.
        self.ui = ui
        self._parts = parts
        self._caches = caches
        self._reconcilers = reconcilers
        self._webhooks = webhooks
        self._webhook_serving = webhook_serving
        self._leads = leads
        self._clock = clock
        #: Added checks of /readyz and of /healthz, metrics, and caches for the metrics.
        self.ready_checks: list[Callable[[], Check]] = []
        self.live_checks: list[Callable[[], Check]] = []
        self.metrics: list[Callable[[], Iterable[Metric]]] = []
        self.more_caches: list[Callable[[], Iterable[Cache]]] = []
        #: What exists once the manager runs.
        self.client: Client | None = None
        self.elector: LeaderElector | None = None
        self.recorder: EventRecorder | None = None

    def checks(self) -> Iterable[Check]:
        """Return the state of each cache and of each part with its own check."""
        for cache in self._caches:
            health = cache.health()
            problem = f"{health.problem} (for {health.since:.0f} s)" if health.problem else ""
            yield Check(f"cache {health.name}", health.ready, problem)
        if self._webhooks:
            yield self._webhook_serving.check()
        yield from map(checked, self.ready_checks)
        if self._parts.failure is not None:
            yield Check(self._parts.failure[0], False, str(self._parts.failure[1]))

    def server(self) -> HealthServer:
        """Return the server, to be entered; `port` must be set."""
        assert self.port is not None  # noqa: S101 - said above
        return HealthServer(
            self.checks,
            make_registry(self._measured()),
            live_checks=lambda: map(checked, self.live_checks),
            pages=self.pages(),
            host=self.host,
            port=self.port,
            clock=self._clock,
        )

    def pages(self) -> list[Page]:
        """Return the pages about keys, for people and for `listwatch why`."""
        states = KeyStates(lambda: self._reconcilers, self._leadership, self._clock)
        why = WhyPage(self._name, states, self._clock)
        ui = UiPage(
            self._name,
            states,
            leadership=self._leadership,
            reconcilers=lambda: self._reconcilers,
            caches=lambda: self._caches,
            requests=lambda: None if self.client is None else self.client.http.statistics,
            clock=self._clock,
        )
        return [
            Page(WHY_PATH, why.handle),
            Page("/ui", ui.page, self.ui),
            Page("/ui/state", ui.state, self.ui),
            Page("/ui/key", why.handle, self.ui),
        ]

    def _leadership(self) -> Leadership:
        elector = self.elector
        if elector is None:
            return Leadership()
        statistics = elector.statistics()
        is_member = isinstance(elector, ShareMember)
        return Leadership(
            leads=self._leads(),
            leader="" if statistics.is_leader else statistics.holder,
            member=elector.identity if is_member else "",
            members=elector.claim.view if isinstance(elector, ShareMember) else (),
        )

    def _measured(self) -> Measured:
        return Measured(
            reconcilers=lambda: [reconciler.statistics() for reconciler in self._reconcilers],
            caches=lambda: itertools.chain(self._caches, *(more() for more in self.more_caches)),
            election=lambda: None if self.elector is None else self.elector.statistics(),
            events=lambda: None if self.recorder is None else self.recorder.statistics(),
            requests=lambda: None if self.client is None else self.client.http.statistics,
            others=lambda: itertools.chain(
                self._webhooks.metrics() if self._webhooks else (),
                (metric for collect in self.metrics for metric in collect()),
            ),
        )
