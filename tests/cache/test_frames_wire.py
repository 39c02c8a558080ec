"""Every list and watch recorded from a real server, cut at any place."""

import json
import random
from pathlib import Path

import pytest

from listwatch.cache.frames import ListFrames, WatchFrames
from listwatch.objects import ObjectDecoder
from listwatch.testing.replay_server import Capture

WIRE = Path(__file__).parents[1] / "data" / "conformance" / "wire"
LISTS = [
    "list-410-continue-inconsistent",
    "list-empty",
    "list-paged-1",
    "list-paged-2",
    "list-paged-3",
    "list-partial-metadata",
    "list-pods",
    "list-widgets",
    "outage-list-rv0-200-1",
]
WATCHES = [
    "outage-watch-200-1",
    "outage-watchlist-200-1",
    "watch-410-compacted",
    "watch-410-in-stream",
    "watch-burst",
    "watch-crd-deleted",
    "watch-gzip-asked",
    "watch-kill",
    "watch-large-event",
    "watch-partial-metadata",
    "watch-pods",
    "watch-sigterm",
    "watch-timeout",
    "watchlist-pods",
]

#: Keeps every byte, for comparison with the recording.
whole = ObjectDecoder(keep_managed_fields=True)


@pytest.mark.parametrize("name", LISTS + WATCHES)
@pytest.mark.parametrize("cut", ["byte by byte", "at random", "whole"])
def test_frames_read_every_recording_however_it_is_cut(name: str, cut: str) -> None:
    body = Capture.load(WIRE, name).body()
    if cut == "byte by byte":
        body = body[:40_000] if name in WATCHES else body
    rng = random.Random(name)
    steps = {"byte by byte": [1], "at random": [1, 10, 1000, 9000], "whole": [len(body)]}[cut]
    pieces = []
    at = 0
    while at < len(body):
        step = rng.choice(steps)
        pieces.append(body[at : at + step])
        at += step
    if name in LISTS:
        frames = ListFrames(whole)
        for piece in pieces:
            frames.feed(piece)
        items = [json.loads(obj.raw) for obj in frames.finish().items]
        assert items == json.loads(body)["items"]
        return
    reader = WatchFrames(whole)
    events = [event for piece in pieces for event in reader.feed(piece)]
    lines = [json.loads(line) for line in body.split(b"\n")[: len(events)]]
    assert len(events) == body.count(b"\n")
    assert [event.type for event in events] == [line["type"] for line in lines]
    for event, line in zip(events, lines, strict=True):
        if event.object is not None:
            assert json.loads(event.object.raw) == line["object"]
