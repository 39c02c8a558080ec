"""The server of `bench/tls.py`: prepared pods by list and by watch, plain or by TLS.

Each watch event is an HTTP chunk and a call of its own, as kube-apiserver sends it.
"""

import gzip
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import trustme
from informers import PAUSE, chunk, pods

PAGE_PODS: Final = 500
#: Not a loopback address for a client, so that it asks for gzip; Linux connects it to itself.
HOST: Final = "0.0.0.0"  # noqa: S104 - the server listens on loopback
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def serve(count: int, authority: str) -> None:
    """Serve lists and watches; each line of standard input is an order for the open watch.

    Args:
        count: number of pods.
        authority: where to write a TLS server's CA certificate; empty for no TLS.
    """
    made = pods(count)
    context: ssl.SSLContext | None = None
    if authority:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(authority)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ca.issue_cert("127.0.0.1", HOST).configure_cert(context)
    coded: dict[tuple[int, bool], bytes] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(
                target=_answer, args=(connection, context, made, coded), daemon=True
            ).start()


def _answer(
    accepted: socket.socket,
    context: ssl.SSLContext | None,
    made: Sequence[tuple[bytes, bytes]],
    coded: dict[tuple[int, bool], bytes],
) -> None:
    with (
        suppress(OSError),
        accepted
        if context is None
        else context.wrap_socket(accepted, server_side=True) as connection,
    ):
        while request := connection.recv(65536):
            if b"sendInitialEvents=" in request:
                _watch(connection, made)
                return
            if b"watch=" in request:
                connection.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                continue  # nothing happens after a list
            at = int(found[1]) if (found := re.search(rb"continue=(\d+)", request)) else 0
            packed = b"Accept-Encoding: gzip" in request
            if (at, packed) not in coded:
                coded[at, packed] = _page(made, at, packed=packed)
            connection.sendall(coded[at, packed])


def _page(made: Sequence[tuple[bytes, bytes]], at: int, *, packed: bool) -> bytes:
    end = at + PAGE_PODS
    more = b',"continue":"%d"' % end if end < len(made) else b""
    items = b",".join(
        b"%b%d%b" % (before, number + 1, after)
        for number, (before, after) in enumerate(made[at:end], at)
    )
    body = (
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"%b},"items":[%b]}'
        % (len(made), more, items)
    )
    if packed:
        body = gzip.compress(body, 1)
    coding = b"Content-Encoding: gzip\r\n" if packed else b""
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (_HEAD, coding, len(body), body)


def _watch(connection: socket.socket, made: Sequence[tuple[bytes, bytes]]) -> None:
    connection.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    version = len(made)
    for number, (before, after) in enumerate(made):
        connection.sendall(chunk(b'{"type":"ADDED","object":%b%d%b}' % (before, number + 1, after)))
    connection.sendall(
        chunk(
            b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{'
            b'"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}}'
            % version
        )
    )
    while order := sys.stdin.readline().split():
        what, events = order[0], int(order[1])
        for number in range(events):
            before, after = made[number % len(made)]
            version += 1
            if what == "ticks":
                time.sleep(PAUSE)
                stamp = b'"bench/sent":"%d"' % time.monotonic_ns()
                before = before.replace(b'"bench/sent":"0"', stamp)
            connection.sendall(
                chunk(b'{"type":"MODIFIED","object":%b%d%b}' % (before, version, after))
            )
        if what == "end":
            return


@contextmanager
def server(count: int, authority: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run the server; yield its port and process."""
    with subprocess.Popen(
        [sys.executable, __file__, str(count), authority],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
