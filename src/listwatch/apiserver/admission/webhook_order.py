"""The order of webhooks for one object, and the combination of their responses.

The rules are those of `apiserver/pkg/admission/plugin/webhook/mutating` and `validating`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.matching import in_version, written
from listwatch.apiserver.admission.webhook import Answer, CallError, Webhook
from listwatch.apiserver.webhooks.consultation import ask, ask_each

if TYPE_CHECKING:
    from listwatch.apiserver.admission.chain import Round
    from listwatch.apiserver.admission.matching import Attributes
    from listwatch.apiserver.admission.webhooks import Webhooks
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.errors import StatusError

_log = logging.getLogger(__name__)

Object = dict[str, Any]


class WebhookMutator:
    """Calls all webhooks that apply to one object, one after the other."""

    def __init__(self, source: Webhooks) -> None:
        self._source = source
        self._output: Object | None = None
        #: webhooks that were called and may have to be called again; webhooks that must be
        self._asked: set[object] = set()
        self._due: set[object] = set()

    def mutate(self, attributes: Attributes, turn: Round) -> None:
        """Replace `attributes.obj` with the result of the webhooks.

        Raises:
            Unanswered: one of them has not been called yet.
            StatusError: one denies the request, or failed.
        """
        if turn.second and attributes.obj != self._output:
            self._require()
        source = self._source
        for place, webhook in enumerate(source.mutating.current()):
            matched = webhook.applies(attributes, source.cluster, source.decide)
            if matched is None or (turn.second and webhook.key not in self._due):
                continue
            changed = self._ask(webhook, matched, attributes, turn, place)
            if changed:
                self._require()
                turn.wanted = True
            if webhook.again:
                self._asked.add(webhook.key)
        self._output = attributes.obj

    def _require(self) -> None:
        self._due |= self._asked
        self._asked = set()

    def _ask(
        self,
        webhook: Webhook,
        matched: APIResource,
        attributes: Attributes,
        turn: Round,
        place: int,
    ) -> bool:
        """Call one webhook; return whether it changed the object."""
        where = f"round_{int(turn.second)}_index_{place}"
        changed = False
        try:
            webhook.check_dry_run(attributes)
            question = webhook.question(self._source.client, attributes, matched, turn.second)
            answer: Answer = ask(question)
            webhook.tell(answer, attributes)
            if not answer.allowed:
                raise webhook.denial(answer.status)
            changed = self._patch(webhook, answer, matched, attributes)
        except CallError as error:
            if webhook.fails:
                raise webhook.failed(error) from None
            _log.warning("webhook %s failed, and is ignored: %s", webhook.name, error)
            key = f"failed-open.mutation.webhook.admission.k8s.io/{where}"
            attributes.annotations[key] = webhook.name
        note = {
            "configuration": webhook.configuration,
            "webhook": webhook.name,
            "mutated": changed,
        }
        key = f"mutation.webhook.admission.k8s.io/{where}"
        attributes.annotations[key] = msgspec.json.encode(note).decode()
        return changed

    def _patch(
        self, webhook: Webhook, answer: Answer, matched: APIResource, attributes: Attributes
    ) -> bool:
        if not answer.patch:
            return False
        source, sub = attributes.resource, attributes.subresource
        before = in_version(attributes.obj, source, matched, sub)
        if before is None:
            raise refusal.internal_error(
                f'admission webhook "{webhook.name}" attempted to modify the object, which is not '
                "supported for this operation"
            )
        if answer.patch_type != "JSONPatch":
            raise CallError(f'unsupported patch type "{answer.patch_type}"')
        after = self._source.editing.revise(before, answer.patch, written(matched, sub))
        attributes.obj = in_version(after, matched, source, sub)
        return after != before


class WebhookValidator:
    """Calls all webhooks that apply to one object, concurrently."""

    def __init__(self, source: Webhooks) -> None:
        self._source = source

    def validate(self, attributes: Attributes) -> None:
        """Raise the first refusal received.

        Raises:
            Unanswered: webhooks have not been called yet.
            StatusError: one denies the request, or failed.
        """
        source = self._source
        relevant: list[tuple[Webhook, APIResource]] = []
        for webhook in source.validating.current():
            matched = webhook.applies(attributes, source.cluster, source.decide)
            if matched is not None:
                relevant.append((webhook, matched))
        for webhook, _ in relevant:
            webhook.check_dry_run(attributes)
        asked: dict[object, tuple[int, Webhook]] = {}
        questions = []
        for place, (webhook, matched) in enumerate(relevant):
            question = webhook.question(source.client, attributes, matched)
            questions.append(question)
            asked[question.key] = (place, webhook)
        refusals: list[StatusError] = []
        for key, answer, error in ask_each(questions):
            place, webhook = asked[key]
            if isinstance(error, CallError):
                if webhook.fails:
                    refusals.append(webhook.failed(error))
                    continue
                _log.warning("webhook %s failed, and is ignored: %s", webhook.name, error)
                where = f"round_0_index_{place}"
                attributes.annotations[
                    f"failed-open.validating.webhook.admission.k8s.io/{where}"
                ] = webhook.name
                continue
            if error is not None:
                raise error
            webhook.tell(answer, attributes)
            if not answer.allowed:
                refusals.append(webhook.denial(answer.status))
        if refusals:
            raise refusals[0]
