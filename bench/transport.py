"""Measures a client reading a list or a watch: aiohttp against the transport on httptools.

`python bench/transport.py` sends the same bytes over loopback to clients in separate processes and
prints the CPU seconds of each (user and system, the median of the runs). The pods are those of
`listwatch.testing.workload`; each watch event is in its own HTTP chunk and sent by its own call, as
kube-apiserver does.
"""

import argparse
import asyncio
import itertools
import json
import resource
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from importlib.metadata import version

import msgspec

from listwatch.cache.frames import ListFrames, WatchFrames
from listwatch.clock import Clock
from listwatch.objects import decode_object
from listwatch.testing.workload import PodGenerator

#: Number of different pods; they are sent repeatedly.
DIFFERENT = 500

LIST_HEAD = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":['


def pods() -> list[bytes]:
    """Return pods as a server sends them."""
    generator = PodGenerator()
    encoded = []
    for number in range(DIFFERENT):
        pod = generator.pod(number)
        pod["metadata"]["uid"] = f"00000000-0000-0000-0000-{number:012d}"
        pod["metadata"]["resourceVersion"] = str(1000 + number)
        encoded.append(msgspec.json.encode(pod))
    return encoded


def watch_parts(objects: Sequence[bytes], count: int) -> Iterable[bytes]:
    """Yield the response to a watch, in the pieces to send."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines = [b'{"type":"ADDED","object":' + pod + b"}\n" for pod in objects]
    framed = [b"%x\r\n%s\r\n" % (len(line), line) for line in lines]
    yield from itertools.islice(itertools.cycle(framed), count)
    yield b"0\r\n\r\n"


def list_parts(objects: Sequence[bytes], count: int) -> Iterable[bytes]:
    """Yield the response to a list, in the pieces to send."""
    rounds = count // len(objects)
    page = b",".join(objects)
    length = len(LIST_HEAD) + rounds * (len(page) + 1) + 1
    yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
    yield LIST_HEAD
    for number in range(rounds):
        yield (b"," if number else b"") + page
    yield b"]}"


def serve(listener: socket.socket, objects: Sequence[bytes], count: int) -> None:
    """Serve one connection after another, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            request = connection.recv(65536)
            parts = watch_parts if b"watch=" in request else list_parts
            for part in parts(objects, count):
                connection.sendall(part)


async def through_aiohttp(url: str) -> AsyncIterator[list[bytes]]:
    """Read like the client without httptools."""
    import aiohttp  # noqa: PLC0415 - only the process that measures it pays for it

    async with (
        aiohttp.ClientSession(
            read_bufsize=2**18, timeout=aiohttp.ClientTimeout(total=None)
        ) as session,
        session.get(url) as response,
    ):
        async for chunk in response.content.iter_any():
            yield [chunk]


async def through_transport(url: str) -> AsyncIterator[list[bytes]]:
    """Read with the transport on httptools."""
    from listwatch.client.transport import stream  # noqa: PLC0415 - as above

    async with stream(url, {}, clock=Clock()) as response:
        async for pieces in response:
            yield pieces


class Sink:
    """Consumes the bytes; `end` returns the number of objects."""

    def __init__(self, kind: str) -> None:
        self.feed: Callable[[bytes], object]
        self._list = ListFrames(decode_object)
        self._watch = WatchFrames(decode_object)
        self._kind = kind
        self._count = 0
        match kind:
            case "watch":
                self.feed = self._feed_watch
            case "list":
                self.feed = self._list.feed
            case _:
                self.feed = self._feed_nothing

    def _feed_watch(self, piece: bytes) -> None:
        self._count += len(self._watch.feed(piece))

    def _feed_nothing(self, piece: bytes) -> None:
        self._count += piece.count(b"\n")

    def end(self) -> int:
        """Return the number of objects."""
        return len(self._list.finish().items) if self._kind == "list" else self._count


async def measure(client: str, kind: str, url: str) -> dict[str, float]:
    """Read one response and return the costs."""
    sink = Sink(kind)
    before = resource.getrusage(resource.RUSAGE_SELF)
    read = through_aiohttp if client == "aiohttp" else through_transport
    async for pieces in read(url):
        for piece in pieces:
            sink.feed(piece)
    count = sink.end()
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {"cpu": user + system, "user": user, "count": count}


def main() -> None:
    """Run the comparison, or one of its clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="pods or events, by the 500")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--client", nargs=3, metavar=("NAME", "KIND", "URL"))
    options = parser.parse_args()
    if options.client:
        name, kind, url = options.client
        print(json.dumps(asyncio.run(measure(name, kind, url))))
        return
    objects = pods()
    size = statistics.mean(map(len, objects))
    print(f"{options.count} pods of {size:.0f} B; aiohttp {version('aiohttp')}", end=", ")
    print(f"httptools {version('httptools')}, Python {sys.version.split()[0]}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=serve, args=(listener, objects, options.count), daemon=True).start()
        for kind, path, what in (
            ("lines", "/?watch=1", "watch, only read and lines counted"),
            ("watch", "/?watch=1", "watch, decoded to events"),
            ("list", "/", "list, decoded to objects"),
        ):
            seconds = {}
            for client in ("aiohttp", "transport"):
                runs = [run(client, kind, url + path) for _ in range(options.runs)]
                assert all(result["count"] == options.count for result in runs)
                seconds[client] = statistics.median(result["cpu"] for result in runs)
            ratio = seconds["aiohttp"] / seconds["transport"]
            rates = ", ".join(f"{name} {cpu:.2f} s" for name, cpu in seconds.items())
            print(f"{what}: {rates}, {ratio:.2f} times", end="; ")
            print(f"{options.count / seconds['transport']:,.0f}/s")


def run(client: str, kind: str, url: str) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--client", client, kind, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()
