"""Measures what an update costs an informer, by stage, from its bytes in memory to its handler.

    python bench/stages.py [--pods 2000] [--runs 20] [--write]

Each row does what the row above does, and more; the difference is the cost of the stage. There is
no network: `bench/tls.py` has the whole, and the same limit. With `--write`, the figures are
written to bench/results/stages.json, and the table made of it into docs/informers.md.
"""

import argparse
import asyncio
import gc
import importlib.metadata
import platform
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import msgspec
from informers import Handler
from publishing import publish
from tls import PAGE, ROOT

from listwatch import SharedInformer
from listwatch.cache.list_watch import ListOptions, ObjectList, WatchEvent, WatchOptions
from listwatch.cache.watch_frames import WatchFrames
from listwatch.objects import ObjectDecoder
from listwatch.testing.workload import PodGenerator

__all__ = ["PAGE", "RESULTS", "table"]

RESULTS: Final = ROOT / "bench" / "results" / "stages.json"
MARK: Final = "python bench/stages.py"
#: Events that arrive together.
BATCH: Final = 40
_HEAD: Final = b'{"type":"MODIFIED","object":'
_OWNED: Final = ("labels", "ownerReferences")

Figures: TypeAlias = dict[str, Any]


class _Meta(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the name in JSON


class _Thing(msgspec.Struct, gc=False):
    metadata: _Meta


class _Event(msgspec.Struct, gc=False):
    type: str
    object: _Thing


def pods(count: int, *, bare: bool = False, ascii_only: bool = False) -> list[bytes]:
    """Return pods, also without labels and owners, or with all text in ASCII."""
    generator, made = PodGenerator(1), []
    for number in range(count):
        pod = generator.pod(number)
        pod["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012d}"
        pod["metadata"]["resourceVersion"] = str(1_000_000 + number)
        if bare:
            for name in _OWNED:
                pod["metadata"].pop(name, None)
        encoded = msgspec.json.encode(pod)
        if ascii_only:
            encoded = encoded.decode().encode("ascii", "replace")
        made.append(encoded)
    return made


def lines(objects: Sequence[bytes]) -> list[bytes]:
    """Return events as a server sends them."""
    return [b"%b%b}\n" % (_HEAD, each) for each in objects]


def decoding(objects: Sequence[bytes], *, keep: bool) -> Callable[[], None]:
    """Return what decodes these objects."""
    decode = ObjectDecoder(keep_managed_fields=keep)

    def work() -> None:
        for each in objects:
            decode.decode_part(each, 0, len(each), "Pod", "v1")

    return work


def least(work: Callable[[], None], runs: int) -> float:
    """Return the least CPU seconds of some runs."""
    found = []
    for _ in range(runs):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


class _Source:
    """A resource that sends events when it is told to."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        self._objects = objects
        self.sent: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()

    async def list(self, options: ListOptions) -> ObjectList:
        items = [options.decoder(each, "Pod", "v1") for each in self._objects]
        return ObjectList(items=items, resource_version="1")

    @asynccontextmanager
    async def watch(
        self, options: WatchOptions
    ) -> AsyncIterator[AsyncIterator[Sequence[WatchEvent]]]:
        frames = WatchFrames(options.decoder, kind="Pod", api_version="v1")

        async def batches() -> AsyncIterator[Sequence[WatchEvent]]:
            while True:
                yield frames.feed(*await self.sent.get())

        yield batches()


async def informing(objects: Sequence[bytes], runs: int) -> float:
    """Return the least CPU seconds of an informer with its two indices and a handler."""
    source, handler, found = _Source(objects), Handler(0, timed=False), []
    informer = SharedInformer(source, watch_list=False)
    informer.add_handler(handler)
    version = 2_000_000
    async with informer:
        await informer.wait_for_sync()
        for _ in range(runs):
            newer = []
            for each in objects:
                version += 1
                at = each.index(b'"resourceVersion":"') + 19
                newer.append(b"%b%d%b" % (each[:at], version, each[at + 7 :]))
            events = lines(newer)
            handler.left, handler.done = len(events), asyncio.Event()
            began = time.process_time()
            for begin in range(0, len(events), BATCH):
                source.sent.put_nowait(events[begin : begin + BATCH])
            await handler.done.wait()
            found.append(time.process_time() - began)
    return min(found)


def measure(count: int, runs: int) -> dict[str, float]:
    """Return the microseconds of an update, with all stages up to each."""
    gc.disable()
    bare, plain, whole = (
        pods(count, bare=True, ascii_only=True),
        pods(count, ascii_only=True),
        pods(count),
    )
    events = lines(whole)
    decode = msgspec.json.Decoder(_Event).decode
    frames = WatchFrames(ObjectDecoder(), kind="Pod", api_version="v1")

    def limit() -> None:
        for each in events:
            decode(each)

    def framing() -> None:
        for begin in range(0, len(events), BATCH):
            frames.feed(*events[begin : begin + BATCH])

    costs = {
        "decoding type and identity (the limit)": least(limit, runs),
        "metadata, a copy of the bytes, an `Object`": least(decoding(bare, keep=True), runs),
        "labels and owners checked and found again": least(decoding(plain, keep=True), runs),
        "text that is not ASCII checked": least(decoding(whole, keep=True), runs),
        "managedFields cut": least(decoding(whole, keep=False), runs),
        "events cut from the stream": least(framing, runs),
        "reflector, queue, store, two indices, handler": asyncio.run(informing(whole, runs)),
    }
    return {stage: seconds / count * 1e6 for stage, seconds in costs.items()}


def table(result: Mapping[str, Any]) -> str:
    """Return the Markdown made of a report."""
    lines = [
        (
            f"{result['date']}; CPython {result['python']}, listwatch {result['listwatch']}, "
            f"msgspec {result['msgspec']}; pods of {result['bytes']:,.0f} bytes, "
            f"least of {result['runs']} runs."
        ),
        "",
        "| stage of an update, without the network | CPU μs | together |",
        "|---|---:|---:|",
    ]
    before = 0.0
    for stage, together in result["stages"].items():
        lines.append(f"| {stage} | {together - before:.1f} | {together:.1f} |")
        before = together
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="write results and documentation")
    options = parser.parse_args()
    some = pods(min(options.pods, 500))
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "listwatch": importlib.metadata.version("listwatch"),
        "msgspec": importlib.metadata.version("msgspec"),
        "bytes": sum(map(len, some)) / len(some),
        "runs": options.runs,
        "stages": measure(options.pods, options.runs),
    }
    text = table(result)
    print(text)
    if options.write:
        publish(RESULTS, PAGE, MARK, result, text)


if __name__ == "__main__":
    main()
