"""Runs long evaluations in a thread, and short ones at once.

The budget of a policy, or of the rules for a custom object, allows seconds of work, which must not
block the event loop. So a long evaluation runs in a thread while the request waits, as for a
webhook; then the request runs again with the result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from listwatch.apiserver.webhooks.consultation import Question, Unanswered, ask, can_ask
from listwatch.cel.patience import Patience, TakesLongError

if TYPE_CHECKING:
    from collections.abc import Callable

    from listwatch.apiserver.admission.expressions import Decide
    from listwatch.apiserver.user import Question as AccessQuestion
    from listwatch.apiserver.user import User

T = TypeVar("T")
#: Cost spent on the event loop: some ten milliseconds.
_AT_ONCE = 20_000


def evaluated(key: object, decide: Decide, work: Callable[[Decide, Patience | None], T]) -> T:
    """Return the result of some work; the request waits for it if it takes long.

    Args:
        key: identifies the work; a key has the same result throughout a request.
        decide: answers the expressions' questions to `authorizer`, in the event loop.
        work: changes nothing visible. Receives its own `decide`, and raises TakesLongError when its
            time is up.
    """
    if not can_ask():
        return work(decide, None)
    loop = asyncio.get_running_loop()

    def elsewhere() -> T:
        return work(_from_thread(decide, loop), None)

    return soon(key, partial(work, decide), elsewhere)


def soon(key: object, work: Callable[[Patience | None], T], elsewhere: Callable[[], T]) -> T:
    """Return the result of some work, done in a thread while the request waits if it takes long.

    Args:
        key: identifies the work; a key has the same result throughout a request.
        work: changes nothing visible; raises TakesLongError when its patience is spent.
        elsewhere: does the same without a limit; called in a thread.
    """
    if not can_ask():
        return work(None)
    question = Question(key, lambda _: asyncio.to_thread(elsewhere))
    try:
        found: T = ask(question)
    except Unanswered:
        try:
            found = work(Patience(_AT_ONCE))
        except TakesLongError:
            # the request waits, then runs up to here again
            raise Unanswered((question,)) from None
    return found


def _from_thread(decide: Decide, loop: asyncio.AbstractEventLoop) -> Decide:
    """Return a function that asks in the event loop, where the roles may be read."""

    def decided(user: User, question: AccessQuestion) -> tuple[bool, str]:
        outcome: concurrent.futures.Future[tuple[bool, str]] = concurrent.futures.Future()

        def answer() -> None:
            try:
                outcome.set_result(decide(user, question))
            except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
                outcome.set_exception(error)

        loop.call_soon_threadsafe(answer)
        return outcome.result()

    return decided
