"""The answers of `listwatch why` as text for people."""

import time
from collections.abc import Iterator

from listwatch.printable import printable
from listwatch.runtime.story import ReconcileStory, RequestStory
from listwatch.runtime.why import KeyState, duration, ordinal, told
from listwatch.runtime.why_page import KeyAnswer

_INDENT = " " * 4


def headline(found: KeyAnswer) -> str:
    """Return the answer about a key, in one line."""
    state = found.state
    return printable(f"{state.reconciler} {state.key}: {found.answer.words}")


def story_lines(state: KeyState) -> Iterator[str]:
    """Yield a key's last reconciles, the last one first."""
    forgotten = state.total - len([each for each in state.stories if each.seconds is not None])
    for story in reversed(state.stories):
        yield from reconcile_lines(story)
    if forgotten > 0:
        yield f"  and {forgotten} earlier reconciles, not kept"


def reconcile_lines(story: ReconcileStory) -> Iterator[str]:
    """Yield one reconcile, a line for each thing that it did."""
    at = time.strftime("%H:%M:%S", time.gmtime(story.began_at))
    words = [printable(story.id)]
    if story.attempt > 1:
        words.append(f"{ordinal(story.attempt)} attempt")
    if story.trigger is not None:
        more = f" and {story.merged} more, last {told(story.newest)}" if story.newest else ""
        words.append(f"woken by {told(story.trigger)}{more}")
    if story.wakes_itself:
        words.append("which it wrote itself")
    words.append(f"waited {duration(story.waited)}")
    yield f"  {at}Z {', '.join(words)}"
    for cache in story.caches:
        lacks = f", lacks {printable(cache.lacks)}" if cache.lacks else ""
        yield f"{_INDENT}cache of {printable(cache.name)} at {printable(cache.version)}{lacks}"
    for request in story.requests:
        yield from _request_lines(request)
    if story.unkept:
        yield f"{_INDENT}and {story.unkept} more requests"
    yield f"{_INDENT}{_ending(story)}"


def _ending(story: ReconcileStory) -> str:
    if story.seconds is None:
        return f"running for {duration(story.ago)}"
    words = f"{story.result.replace('_', ' ')} after {duration(story.seconds)}"
    if story.error:
        words += f": {printable(story.error)}"
    if story.place:
        words += f" at {printable(story.place)}"
    if story.next_in is not None:
        words += f"; next try after {duration(story.next_in)}"
    return words


def _request_lines(request: RequestStory) -> Iterator[str]:
    line = f"{_INDENT}{request.verb} {request.resource} {request.key}".rstrip()
    if request.ms is None:
        yield printable(f"{line}: no response yet")
        return
    line += f": {request.error or request.code} in {duration(request.ms / 1000)}"
    if request.version:
        line += f", version {request.version}"
    if request.fields == ():
        line += ", which changed nothing"
    yield printable(line)
    for path, old, new in request.fields or ():
        yield printable(f"{_INDENT}{_INDENT}{path}: {old} → {new}")
