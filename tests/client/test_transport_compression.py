"""Compressed response bodies."""

import asyncio
import gzip
import json
import zlib

import pytest

from client.transport_server import (
    OK,
    by_hand,
    feed_by_hand,
    read_all,
    receive,
)
from listwatch.client.content_coding import MAX_DECODED_BYTES
from listwatch.client.transport import Response
from listwatch.errors import FrameError


def bare_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


BODY = json.dumps({"items": [{"name": f"pod-{n}", "uid": n * 7919} for n in range(3000)]}).encode()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(BODY)),
        (b"GZIP", gzip.compress(BODY)),
        (b"x-gzip", gzip.compress(BODY)),
        (b"gzip", gzip.compress(BODY[:5000]) + gzip.compress(BODY[5000:])),
        (b"deflate", zlib.compress(BODY)),
        (b"deflate", bare_deflate(BODY)),
        (b"identity", BODY),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10**9])
async def test_takes_the_compression_off(coding: bytes, body: bytes, size: int) -> None:
    connection, _ = by_hand()
    receive(connection, OK + b"Content-Encoding: " + coding + b"\r\n\r\n")
    response = Response(connection)
    for n in range(0, len(body), size):
        receive(connection, body[n : n + size])
    connection.connection_lost(None)
    assert await read_all(response) == (BODY, True)


async def test_a_compressed_event_is_given_when_it_is_flushed() -> None:
    connection, _ = by_hand()
    receive(connection, OK + b"Content-Encoding: gzip\r\n\r\n")
    response = Response(connection)
    deflate = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    for n in range(3):
        line = b'{"type":"ADDED","n":%d}\n' % n
        data = deflate.compress(line) + deflate.flush(zlib.Z_SYNC_FLUSH)
        receive(connection, data)
        assert await anext(response) == [line]


@pytest.mark.parametrize(
    ("coding", "body", "words"),
    [
        ("gzip", gzip.compress(BODY)[:-1], "a gzip body that is truncated"),
        ("gzip", b"plain text", "a body that is not valid gzip"),
        ("gzip", gzip.compress(BODY) + b"more", "a body that is not valid gzip"),
        ("deflate", zlib.compress(BODY)[:-5], "a deflate body that is truncated"),
        ("deflate", b"\xff\xff", "a body that is not valid deflate"),
    ],
)
async def test_wrong_compression_is_an_error(coding: str, body: bytes, words: str) -> None:
    head = OK + f"Content-Encoding: {coding}\r\n\r\n".encode()
    with pytest.raises(FrameError, match=words):
        await feed_by_hand([head, body])


async def test_an_empty_body_needs_no_compression() -> None:
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    assert await feed_by_hand([head]) == (200, b"", True)


async def test_a_small_body_that_is_huge_when_decoded_comes_in_bounded_steps() -> None:
    connection, _ = by_hand()
    receive(connection, OK + b"Content-Encoding: gzip\r\n\r\n")
    response = Response(connection)
    size = 40 * MAX_DECODED_BYTES
    receive(connection, gzip.compress(bytes(size)))
    connection.connection_lost(None)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    is_over = False
    async with asyncio.TaskGroup() as group:
        group.create_task(count_turns())
        steps = [sum(map(len, pieces)) async for pieces in response]
        is_over = True
    assert sum(steps) == size
    assert max(steps) <= MAX_DECODED_BYTES
    assert turns >= 38
