"""Admission webhooks as a source of admission; the calling code is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from listwatch.apiserver.admission.validation import LONG
from listwatch.apiserver.webhooks.consultation import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from listwatch.apiserver.admission.chain import Mutator, Validator
    from listwatch.apiserver.admission.expressions import Decide
    from listwatch.apiserver.admission.matching import Cluster
    from listwatch.apiserver.admission.policies import Configuration, Editing
    from listwatch.apiserver.admission.webhook import Webhook
    from listwatch.apiserver.webhooks.client import WebhookClient


class WebhookIndex:
    """The webhooks of one kind. For one event loop.

    Args:
        kind: "validating" or "mutating".
        configuration: contains the objects.
    """

    def __init__(self, kind: str, configuration: Configuration) -> None:
        self._mutating = kind == "mutating"
        self._plural = f"{kind}webhookconfigurations"
        self._configuration = configuration
        self._seen = -1
        #: parsed webhooks by uid and revision of their configuration
        self._made: dict[tuple[str, int], list[Webhook]] = {}
        self._webhooks: list[Webhook] = []

    @property
    def exist(self) -> bool:
        """Whether there are any configurations."""
        return self._configuration.exists(self._plural)

    def current(self) -> Sequence[Webhook]:
        """Return the webhooks by configuration name, and in each configuration's order."""
        seen = self._configuration.version(self._plural)
        if self._seen != seen:
            self._made = self._make()
            self._webhooks = [each for found in self._made.values() for each in found]
            self._seen = seen
        return self._webhooks

    def _make(self) -> dict[tuple[str, int], list[Webhook]]:
        """Return the webhooks of each configuration; a request waits while long ones compile."""
        from listwatch.apiserver.admission.webhook import Webhook  # noqa: PLC0415 - seldom needed

        objects = {
            (obj["metadata"]["uid"], revision): obj
            for revision, obj in self._configuration.objects(self._plural)
        }
        new = {state: obj for state, obj in objects.items() if state not in self._made}

        def work() -> dict[tuple[str, int], list[Webhook]]:
            return {
                state: [
                    Webhook(obj["metadata"]["name"], state[1], place, each, mutating=self._mutating)
                    for place, each in enumerate(obj.get("webhooks") or ())
                ]
                for state, obj in new.items()
            }

        is_long = sum(len(msgspec.json.encode(obj)) for obj in new.values()) > LONG
        made = in_thread(("compile", self._plural, *new), work) if is_long else work()
        made = {**self._made, **made}
        return {state: made[state] for state in objects}


class Webhooks:
    """Both kinds of webhooks as a source of admission. For one event loop.

    Args:
        cluster: contains the namespaces.
        configuration: contains the webhooks.
        decide: answers the expressions' questions to `authorizer`.
        editing: patches objects.
        client: calls the webhooks.
    """

    def __init__(
        self,
        cluster: Cluster,
        configuration: Configuration,
        decide: Decide,
        editing: Editing,
        client: WebhookClient,
    ) -> None:
        self.cluster = cluster
        self.decide = decide
        self.editing = editing
        self.client = client
        self.mutating = WebhookIndex("mutating", configuration)
        self.validating = WebhookIndex("validating", configuration)

    def mutator(self) -> Mutator | None:
        """Return a mutator for one object, if there are mutating webhooks."""
        if not self.mutating.exist:
            return None
        from listwatch.apiserver.admission.webhook_order import (  # noqa: PLC0415 - seldom needed
            WebhookMutator,
        )

        return WebhookMutator(self)

    def validator(self) -> Validator | None:
        """Return a validator for one object, if there are validating webhooks."""
        if not self.validating.exist:
            return None
        from listwatch.apiserver.admission.webhook_order import (  # noqa: PLC0415 - seldom needed
            WebhookValidator,
        )

        return WebhookValidator(self)
