import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.observe.output import LineCutter, OutputError, OutputStream


def _read_all(fd: int, until: int) -> bytes:
    data = b""
    while len(data) < until:
        data += os.read(fd, 65536)
    return data


async def test_a_slow_reader_holds_the_writer_and_not_the_event_loop() -> None:
    reading, writing = os.pipe()
    try:
        stream = OutputStream(writing)
        size = 300_000
        writer = asyncio.ensure_future(stream.write(b"x" * (size - 1) + b"\n"))
        turns = 0
        for _ in range(50):
            await asyncio.sleep(0)
            turns += 1
        assert not writer.done()
        assert turns == 50
        data = await asyncio.to_thread(_read_all, reading, size)
        await writer
        assert len(data) == size
    finally:
        os.close(reading)
        os.close(writing)


async def test_writes_of_many_tasks_never_mix(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        stream = OutputStream(writing)
        lines = [bytes([65 + n]) * 20_000 + b"\n" for n in range(10)]
        reader = asyncio.ensure_future(asyncio.to_thread(_read_all, reading, sum(map(len, lines))))
        await asyncio.gather(*(stream.write(line) for line in lines))
        assert sorted((await reader).splitlines(keepends=True)) == lines
    finally:
        os.close(reading)
        os.close(writing)
    path = tmp_path / "file"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    await OutputStream(fd).write("text\n")
    os.close(fd)
    assert path.read_text() == "text\n"


async def test_a_line_that_was_cut_short_ends_before_the_next() -> None:
    reading, writing = os.pipe()
    try:
        stream = OutputStream(writing)
        writer = asyncio.ensure_future(stream.write(b"x" * 200_000 + b"\n"))
        for _ in range(20):
            await asyncio.sleep(0)
        writer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writer
        written = len(os.read(reading, 200_000))
        assert 0 < written < 200_000
        await stream.write(b"next\n")
        assert os.read(reading, 100) == b"\nnext\n"
    finally:
        os.close(reading)
        os.close(writing)


async def test_nobody_reading_is_a_broken_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(BrokenPipeError):
            await OutputStream(writing).write("x")
    finally:
        os.close(writing)


async def test_a_full_disk_is_named() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutputError, match="unable to write the output: No space left"):
        await OutputStream(fd).write("x")
    os.close(fd)


async def test_the_null_device_takes_everything() -> None:
    fd = os.open(os.devnull, os.O_WRONLY)
    await OutputStream(fd).write(b"x" * 100_000)
    os.close(fd)


@given(st.lists(st.binary(max_size=20)))
def test_lines_come_whole_and_nothing_is_lost(chunks: list[bytes]) -> None:
    cutter = LineCutter()
    lines = [cutter.feed(chunk) for chunk in chunks]
    assert all(not line or line.endswith(b"\n") for line in lines)
    text = b"".join(chunks)
    ended = text if not text or text.endswith(b"\n") else text + b"\n"
    assert b"".join(lines) + cutter.finish() == ended


def test_a_flood_without_a_newline_is_cut_into_lines() -> None:
    cutter = LineCutter()
    total = b"".join(cutter.feed(b"x" * 10_000) for _ in range(20)) + cutter.finish()
    assert total.replace(b"\n", b"") == b"x" * 200_000
    assert max(map(len, total.splitlines())) <= 80_000
