"""Bytes that no client library sends: the server answers or hangs up, and stays well."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.http.call import BODY_LIMIT


class _Raw:
    """A server that is sent raw bytes."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._server = EmbeddedAPIServer(test_api=True)

    def __enter__(self) -> Self:
        self._runner.run(self._server.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._server.stop())
        self._runner.close()

    def send(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Return the beginning of the response; b"" if the server hangs up."""
        return self._runner.run(self._send(data, half_close=half_close))

    async def _send(self, data: bytes, *, half_close: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            writer.write(data)
            with suppress(ConnectionError):
                await writer.drain()
                if half_close:
                    writer.write_eof()
                async with asyncio.timeout(40):
                    return await reader.read(65536)
            return b""
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def is_well(self) -> bool:
        return self.send(_request("GET", "/healthz")).startswith(b"HTTP/1.1 200 OK\r\n")


def _request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.fixture(scope="module")
def raw() -> Iterator[_Raw]:
    with _Raw() as raw:
        yield raw


_PODS = "/api/v1/pods"
_SPACES = "/api/v1/namespaces"
_CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /api HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (_request("FOO", _PODS), 405),
        (_request("GET", _PODS, ": x"), 400),
        (_request("GET", f"{_PODS}?limit=%ff%fe"), 400),
        (_request("GET", "/api/v1/%zz"), 404),
        (_request("GET", _PODS, "Accept: " + "a," * 3000), 406),
        (_request("GET", _PODS, "Accept: \xff\xfe"), 406),
        (_request("GET", _PODS, "X-Long: " + "a" * 500_000), 200),
        (_request("GET", f"{_PODS}?labelSelector=a%20in%20({'b,' * 50_000}c)"), 200),
        (_request("GET", _PODS, "X-Long: " + "a" * 1_100_000), 431),
        (_request("POST", _SPACES, "Content-Length: -1"), 400),
        (_request("POST", _SPACES, "Content-Length: 2", _CHUNKED), 400),
        (_request("POST", _SPACES, _CHUNKED) + b"zz\r\n{}\r\n", 400),
        (_request("POST", _SPACES, "Content-Encoding: gzip", body=b"\x1f\x8bnonsense"), 400),
        (_request("POST", _SPACES, body=b"x" * (BODY_LIMIT + 1)), 413),
        (_request("POST", _SPACES, _CHUNKED) + b"400000\r\n" + b"x" * 0x400000, 413),
        (_request("POST", "/-/faults", body=b"x" * (BODY_LIMIT + 1)), 413),
        (_request("GET", _PODS, "Upgrade: websocket", "Connection: Upgrade"), 200),
    ],
)
def test_odd_requests_are_answered(
    data: bytes, status: int, raw: _Raw, caplog: pytest.LogCaptureFixture
) -> None:
    answer = raw.send(data)
    assert answer[:8] in {b"HTTP/1.0", b"HTTP/1.1"}
    assert int(answer[9:12]) == status, answer[:300]
    assert raw.is_well()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_client_that_waits_for_a_word_before_its_body_gets_it(raw: _Raw) -> None:
    head = _request("POST", _SPACES, "Expect: 100-continue", "Content-Length: 2")
    assert raw.send(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert b"HTTP/1.1 422 " in raw.send(head + b"{}")


_TOKENS = st.sampled_from(
    [
        b"GET ",
        b"POST ",
        b" HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"Content-Length: 4\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Content-Type: application/vnd.kubernetes.protobuf\r\n",
        b"k8s\x00\x0a\x0c",
        b"4\r\nabcd\r\n",
        b"0\r\n\r\n",
        _PODS.encode(),
        _SPACES.encode(),
        b"?watch=1&timeoutSeconds=1",
        b"?continue=e30",
        b"/-/faults",
        b"{}",
    ]
)


@given(
    pieces=st.lists(_TOKENS | st.binary(max_size=8), max_size=12),
    place=st.integers(0, 400),
    junk=st.binary(max_size=3),
    half_close=st.booleans(),
)
@example(pieces=[], place=0, junk=b"", half_close=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_bytes_harm_the_server(
    raw: _Raw,
    caplog: pytest.LogCaptureFixture,
    pieces: list[bytes],
    place: int,
    junk: bytes,
    half_close: bool,
) -> None:
    """Send random HTTP tokens, and a good request with some bytes replaced."""
    good = _request("POST", _SPACES, "Content-Type: application/json", body=b'{"metadata":{}}')
    place %= len(good)
    broken = good[:place] + junk + good[place + len(junk) :]
    closing = _request("GET", "/healthz", "Connection: close")
    for data in (b"".join(pieces), broken):
        # The rest completes a request that is incomplete, or makes it invalid.
        raw.send(data + b"\r\n\r\n" + closing * 3 + b"\x00", half_close=half_close)
    assert raw.is_well()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
