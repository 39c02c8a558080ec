"""The cost of an event and a listed object from the bytes of a connection on, without a network."""

import ssl
from collections.abc import Mapping

import msgspec
import pytest

from client.transport_server import CHUNKED, by_hand, receive
from guards.counting import bytes_kept, calls, guard
from listwatch.cache.frames import ListFrames, WatchFrames
from listwatch.client.transport import Response
from listwatch.objects import Object, ObjectDecoder
from listwatch.testing.workload import PodGenerator


def _pods(count: int) -> list[bytes]:
    """Return pods with managedFields, labels, owners and text that is not ASCII."""
    generator, made = PodGenerator(1), []
    for number in range(count):
        pod = generator.pod(number)
        pod["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012d}"
        pod["metadata"]["resourceVersion"] = str(number + 1)
        assert pod["metadata"]["managedFields"]
        made.append(msgspec.json.encode(pod))
    return made


def _chunk(pod: bytes) -> bytes:
    event = b'{"type":"MODIFIED","object":%b}\n' % pod
    return b"%x\r\n%b\r\n" % (len(event), event)


def _decoder(fields: str) -> ObjectDecoder:
    return ObjectDecoder(keep_managed_fields=fields == "kept")


@pytest.mark.parametrize("fields", ["cut", "kept"])
async def test_an_event_with_managed_fields_costs_what_it_did(fields: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        frames = WatchFrames(_decoder(fields), kind="Pod", api_version="v1")
        events = [b'{"type":"MODIFIED","object":%b}\n' % pod for pod in _pods(items)]
        seen = 0
        with calls() as counted:
            for begin in range(0, items, 50):
                seen += len(frames.feed(*events[begin : begin + 50]))
        assert seen == items
        return counted

    await guard(f"frames-event-{fields}", work)


@pytest.mark.parametrize("fields", ["cut", "kept"])
async def test_a_listed_object_with_managed_fields_costs_what_it_did(fields: str) -> None:
    async def work(items: int) -> Mapping[str, int]:
        frames = ListFrames(_decoder(fields))
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%b]}' % b",".join(
            _pods(items)
        )
        with calls() as counted:
            for begin in range(0, len(body), 65536):
                frames.feed(body[begin : begin + 65536])
            assert len(frames.finish().items) == items
        return counted

    await guard(f"frames-listed-{fields}", work)


async def test_an_object_without_its_managed_fields_keeps_the_memory_it_did() -> None:
    """Its own bytes, which tests of objects check, come from C; the rest is the metadata."""
    pods = _pods(500)
    sizes = {size: sum(map(len, pods[:size])) for size in (50, 500)}

    async def work(items: int) -> Mapping[str, int]:
        frames = WatchFrames(ObjectDecoder(), kind="Pod", api_version="v1")
        kept: list[Object | None] = []
        events = [b'{"type":"ADDED","object":%b}\n' % pod for pod in pods[:items]]
        with bytes_kept() as counted:
            for event in events:
                kept += [each.object for each in frames.feed(event)]
        assert sum(obj.stored_bytes for obj in kept if obj is not None) < 0.8 * sizes[items]
        return counted

    await guard("frames-event-kept-memory", work)


async def _read(context: ssl.SSLContext, items: int, together: int) -> Mapping[str, int]:
    """Read events of which so many come at once; return the counts."""
    connection, _ = by_hand(context)
    receive(connection, CHUNKED)
    response = Response(connection)
    frames = WatchFrames(ObjectDecoder(), kind="Pod", api_version="v1")
    chunks = [_chunk(pod) for pod in _pods(items)]
    parts = [b"".join(chunks[begin : begin + together]) for begin in range(0, items, together)]
    seen = 0
    with calls() as counted:
        for data in parts:
            receive(connection, data)
            seen += len(frames.feed(*await response.read_pieces()))
    assert seen == items
    return counted


async def test_a_tls_record_costs_what_it_did() -> None:
    """Python's own ssl and uvloop hand over each record of at most 16 KB by itself."""
    context = ssl.create_default_context()
    await guard("tls-record", lambda items: _read(context, items, 1))


async def test_an_event_among_many_in_one_read_costs_what_it_did() -> None:
    """With aiofastnet, TLS and plain text are read in parts of up to 2 MB."""
    context = ssl.create_default_context()
    await guard("tls-event-50", lambda items: _read(context, items, 50))
