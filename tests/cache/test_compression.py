"""Compressed objects look the same to every reader."""

import builtins
import copy
import pickle
import random
import threading
from typing import Any

import msgspec
import pytest

from listwatch.cache.compression import ZstdCodec
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError
from listwatch.objects import ObjectDecoder
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


def raw_pods(count: int) -> list[bytes]:
    rng = random.Random(7)
    words = [f"word-{rng.randrange(10**6)}" for _ in range(200)]
    return [
        msgspec.json.encode(
            pod(
                f"p{number}",
                "ns",
                containers=[
                    {"name": rng.choice(words), "image": rng.choice(words), "env": words[:30]}
                    for _ in range(3)
                ],
                nodeName=rng.choice(words),
            )
        )
        for number in range(count)
    ]


def test_a_dictionary_is_trained_on_the_first_objects_and_saves_memory() -> None:
    codec = ZstdCodec()
    raws = raw_pods(700)
    packed = [codec.pack(raw) for raw in raws]
    assert [codec.unpack(one) for one in packed] == raws
    figures = codec.statistics()
    assert figures.trained
    assert figures.objects == 700
    assert figures.raw_bytes == sum(map(len, raws))
    assert len(packed[-1]) < len(packed[0]) / 2
    again = ZstdCodec(codec.dictionary)
    assert again.unpack(packed[-1]) == raws[-1]
    assert len(again.pack(raws[0])) < len(packed[0])


def test_what_can_not_be_trained_on_is_packed_all_the_same() -> None:
    codec = ZstdCodec()
    raw = b"{}"
    assert all(codec.unpack(codec.pack(raw)) == raw for _ in range(600))
    assert not codec.statistics().trained


def test_any_thread_may_pack() -> None:
    """The library crashes the process if two threads use one compressor at once."""
    decode = ObjectDecoder(codec=ZstdCodec())
    raws = raw_pods(700)
    wrong: list[bytes] = []

    def pack() -> None:
        wrong.extend(raw for raw in raws if decode(raw).raw != raw)

    threads = [threading.Thread(target=pack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_packed_objects_can_be_copied_and_pickled() -> None:
    decode = ObjectDecoder(codec=ZstdCodec())
    obj = [decode(raw) for raw in raw_pods(600)][-1]
    for again in (copy.copy(obj), copy.deepcopy(obj), pickle.loads(pickle.dumps(obj))):  # noqa: S301 - our own bytes
        assert (again, again.meta) == (obj, obj.meta)
        assert again.to_dict() == obj.to_dict()


def test_any_thread_may_read() -> None:
    codec = ZstdCodec()
    raws = raw_pods(600)
    packed = [codec.pack(raw) for raw in raws]
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(i for i, one in enumerate(packed) if codec.unpack(one) != raws[i])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_decoder_packs_its_objects() -> None:
    decode = ObjectDecoder(codec=ZstdCodec())
    raw = raw_pods(1)[0]
    obj = decode(raw)
    assert obj.stored_bytes < len(raw)
    assert obj.raw == raw
    assert obj["spec"]["nodeName"].startswith("word-")


async def test_an_informer_compresses_on_request() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", text="x" * 5000))
    async with SharedInformer(source, compress="zstd", clock=clock) as informer:
        await informer.wait_for_sync()
        cached = informer.lister.get("a")
        assert cached.stored_bytes < 500
        assert cached["spec"]["text"] == "x" * 5000
        figures = informer.statistics().compression
        assert figures is not None
        assert figures.objects == 1
        assert figures.packed_bytes == informer.indexer.stored_bytes() == cached.stored_bytes
        assert figures.raw_bytes == len(cached.raw)
    with pytest.raises(ValueError, match="either compress= or codec="):
        SharedInformer(source, compress="zstd", codec=ZstdCodec())


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_zstandard(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_zstandard)
    with pytest.raises(ConfigError, match=r'pip install "listwatch\[zstandard\]"'):
        ZstdCodec()
