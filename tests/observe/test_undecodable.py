"""An object that can't be decoded is not gone: no deletion command runs for it."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.clock import Clock
from listwatch.observe.execute import Executor
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.observer import Observer, namespaced
from listwatch.observe.options import ObserveOptions
from listwatch.observe.output import OutputStream
from listwatch.observe.printing import Printer
from listwatch.observe.reaction import Reaction
from listwatch.observe.session import find_source
from listwatch.testing.scripted_server import ScriptedServer, respond

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
PODS = "/api/v1/namespaces/ns/pods"


def _pod(name: str, version: int, spec: str = "{}", labels: str = "{}") -> str:
    meta = (
        f'{{"name":"{name}","namespace":"ns","uid":"u-{name}","resourceVersion":"{version}",'
        f'"labels":{labels}}}'
    )
    return f'{{"kind":"Pod","apiVersion":"v1","metadata":{meta},"spec":{spec}}}'


def _list(version: int, *pods: str) -> bytes:
    meta = f'{{"resourceVersion":"{version}"}}'
    text = f'{{"kind":"PodList","apiVersion":"v1","metadata":{meta},"items":[{",".join(pods)}]}}'
    return respond(text.encode())


class Pods:
    """Serve lists and watches in order and repeat the last; each watch ends at once."""

    def __init__(self, lists: list[bytes], watches: list[bytes]) -> None:
        self.lists, self.watches = lists, watches
        self.listed = 0

    def __call__(self, request: bytes) -> bytes:
        target = request.split(b" ", 2)[1]
        if b"sendInitialEvents=true" in target:
            return respond({"kind": "Status", "reason": "Invalid", "code": 422}, code=422)
        if b"watch=" in target:
            return self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]
        self.listed += 1
        return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]


EXPIRED = respond(b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n')


@pytest.mark.parametrize("odd", [{"spec": DEEP}, {"labels": "5"}, {"labels": '{"a":[]}'}])
async def test_what_can_not_be_decoded_any_more_runs_no_command_for_deletions(
    tmp_path: Path, odd: dict[str, str]
) -> None:
    event = f'{{"type":"MODIFIED","object":{_pod("a", 3, **odd)}}}\n'
    pods = Pods(
        [
            _list(2, _pod("a", 1), _pod("b", 2)),
            _list(9, _pod("a", 3, **odd), _pod("c", 9)),
        ],
        [respond(event.encode()), EXPIRED],
    )
    async with ScriptedServer() as server, contextlib.AsyncExitStack() as stack:
        server.answers["/api"] = {"kind": "APIVersions", "versions": ["v1"]}
        server.answers["/apis"] = {"kind": "APIGroupList", "groups": []}
        server.answers["/api/v1"] = {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [
                {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod",
                 "verbs": ["get", "list", "watch"]}
            ],
        }  # fmt: skip
        server.answers[PODS] = pods
        server.answers[f"{PODS}/a"] = respond(_pod("a", 3, **odd).encode())
        client = await stack.enter_async_context(
            Client.from_config(Config(server=server.url, namespace="ns"))
        )
        options = ObserveOptions(
            resources=("pods",), command=("/bin/echo", "got"), delete_command=("/bin/echo", "gone")
        )
        source = await find_source(client, "pods", options, "ns", Clock())
        streams = []
        for name in ("out", "err"):
            fd = os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY)
            stack.callback(os.close, fd)
            streams.append(OutputStream(fd))
        clock = Clock()
        observer = Observer(
            options,
            [source],
            reaction=Reaction(
                options,
                namespaced=namespaced([source]),
                out=streams[0],
                err=streams[1],
                metrics=ObserveMetrics(),
                printer=Printer(),
                executor=Executor(clock),
                clock=clock,
            ),
            known_names=None,
            err=streams[1],
            clock=clock,
        )
        task = asyncio.ensure_future(observer.run())
        async with asyncio.timeout(30):
            while "got ns c" not in (tmp_path / "out").read_text():
                await asyncio.wait({task}, timeout=0.02)
                assert not task.done()
        observer.stop()
        await task
    words = [w for w in (tmp_path / "out").read_text().splitlines() if not w.startswith("# ")]
    assert sorted(words) == ["gone ns b", "got ns a", "got ns b", "got ns c"]
