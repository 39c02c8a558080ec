"""Drives this package's informer and its rivals through the same failing server, and tabulates it.

    python bench/faults.py --write  # everything, in about 10 minutes
    python bench/faults.py --only silent-peer --clients listwatch,kopf

Each contestant follows pods as in bench/report.py, against a server of its own that plays one fault
from the moment at which the contestant first asks for pods (or first watches them). All contestants
meet a fault at the same time, in processes of their own. What is measured: the requests for pods in
the first minute, the seconds from the end of the fault (or from the change that it hides) until the
contestant has been told the server's state, changes that it was never told, what it was told
wrongly, and the CPU of its process. With `--write`, the figures are written to
bench/results/faults.json; bench/report.py makes the tables.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from report import CONTESTANTS, FAULTS, OURS
from rivals import rivals_python

Figures = dict[str, Any]
Pod = dict[str, Any]

#: Seconds of a fault, from the first request.
SECONDS: Final = 62.0
#: A contestant that asks for nothing is given up after these seconds.
START_SECONDS: Final = 60.0
#: Seconds between the first request and the fault.
CALM_SECONDS: Final = 3.0
_TOKENS: Final = ("first", "second")


class World:
    """A server of three pods, which fails as its scenario wants. For one event loop."""

    def __init__(self, folder: Path) -> None:
        self.token_file = folder / "token"
        self.token_file.write_text(_TOKENS[0], encoding="utf-8")
        self.version = 1000
        self.pods: dict[str, Pod] = {}
        #: What happened, for watches from an older version.
        self.history: list[tuple[int, str, Pod]] = []
        #: Watches from before this version get 410.
        self.oldest = 0
        #: The monotonic times of the requests for pods.
        self.requests: list[float] = []
        self.asked = asyncio.Event()
        #: Whether initial events are followed by their bookmark.
        self.ends_initial_events = True
        #: The code of every response for pods; 200 for the truth.
        self.code = 200
        #: What each watch does instead of following: "", "410" or "once".
        self.watch = ""
        #: Only this token is accepted; any if empty.
        self.token = ""
        self.url = ""
        self._news = asyncio.Event()
        self._open: dict[int, web.Request] = {}
        self._silenced: set[int] = set()
        self._runner: web.AppRunner | None = None
        for name in ("a", "b", "c"):
            self.put(name)

    # --- What happens ---

    def put(self, name: str, **more: Any) -> None:
        """Create or change a pod."""
        self.version += 1
        old = self.pods.get(name)
        uid = old["metadata"]["uid"] if old else f"uid-{name}-{self.version}"
        pod: Pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid,
                "resourceVersion": str(self.version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"containers": [{"name": "main", "image": "i"}]},
            "status": {"phase": "Running"},
            **more,
        }
        self.pods[name] = pod
        self._tell("MODIFIED" if old else "ADDED", pod)

    def delete(self, name: str) -> None:
        """Delete a pod."""
        self.version += 1
        pod = self.pods.pop(name)
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}}
        self._tell("DELETED", pod)

    def restore(self, version: int) -> None:
        """Continue from a backup: an older version, and without the pod c."""
        self.version = version
        self.history, self.oldest = [], 0
        self.pods = {name: self.pods[name] for name in ("a", "b")}
        for name in ("a", "b"):
            self.put(name)

    def cut(self) -> None:
        """Close all connections."""
        for request in list(self._open.values()):
            if request.transport is not None:
                request.transport.abort()

    def silence(self) -> None:
        """From now on send nothing on the connections that are open, and don't close them."""
        self._silenced |= self._open.keys()

    def _tell(self, change: str, pod: Pod) -> None:
        self.history.append((self.version, change, pod))
        self._news.set()
        self._news = asyncio.Event()

    # --- The server ---

    async def start(self, port: int = 0) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Refuse connections, and close those that are open."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()

    async def again(self) -> None:
        """Listen again, at the same port."""
        await self.start(int(self.url.rpartition(":")[2]))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in _OTHERS:
            return await _nothing(request)
        if request.path != "/api/v1/pods":
            return web.json_response(_discovery(request.path.rstrip("/")))
        self.requests.append(time.monotonic())
        self.asked.set()
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if self.token and sent != self.token:
            return _status(401, "Unauthorized", "Unauthorized")
        if self.code != 200:
            return _status(self.code, "InternalError", "the server is broken")
        if request.query.get("watch") in {"1", "true", "True"}:
            return await self._watch(request)
        items = [pod for _, pod in sorted(self.pods.items())]
        meta = {"resourceVersion": str(self.version)}
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        asked = request.query.get("resourceVersion", "")
        initial = request.query.get("sendInitialEvents") == "true"
        since = int(asked or 0)
        if since > self.version:  # a real server waits this long for the version
            await asyncio.sleep(3)
            return _status(504, "Timeout", "Too large resource version", _TOO_LARGE)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._open[id(request)] = request
        try:
            await response.prepare(request)
            if initial or not since:
                since = self.version
                for _, pod in sorted(self.pods.items()):
                    await self._send(request, response, "ADDED", pod)
                if initial and self.ends_initial_events:
                    await self._send(request, response, "BOOKMARK", _bookmark(since))
            elif self.watch == "410" or since < self.oldest:
                gone: Pod = {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "metadata": {},
                    "status": "Failure",
                }
                gone |= {"message": "too old resource version", "reason": "Expired", "code": 410}
                await self._send(request, response, "ERROR", gone)
                return response
            elif self.watch == "once":
                self.put("a")
            while True:
                news = self._news
                for version, change, pod in self.history:
                    if version > since:
                        since = version
                        await self._send(request, response, change, pod)
                if self.watch:
                    return response
                await news.wait()
        except ConnectionResetError:
            return response
        finally:
            del self._open[id(request)]
            self._silenced.discard(id(request))

    async def _send(
        self, request: web.Request, response: web.StreamResponse, change: str, obj: Pod
    ) -> None:
        if id(request) in self._silenced:
            await asyncio.Event().wait()
        await response.write(json.dumps({"type": change, "object": obj}).encode() + b"\n")


_TOO_LARGE: Final = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large"}]}


def _status(
    code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    more = {"reason": reason, "message": message, "code": code, "details": details or {}}
    return web.json_response(status | more, status=code)


def _bookmark(version: int) -> Pod:
    annotations = {"k8s.io/initial-events-end": "true"}
    meta = {"resourceVersion": str(version), "annotations": annotations}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta}


_OTHERS: Final = {"/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}
_VERBS: Final = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _row(name: str, kind: str, *, namespaced: bool) -> Figures:
    row = {"name": name, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind}
    return row | {"verbs": _VERBS}


def _discovery(path: str) -> Figures:
    match path:
        case "/version":
            return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "/api/v1":
            rows = [_row("pods", "Pod", namespaced=True)]
            rows += [_row("namespaces", "Namespace", namespaced=False)]
            return {"kind": "APIResourceList", "groupVersion": "v1", "resources": rows}
        case "/apis/apiextensions.k8s.io/v1":
            kind = "CustomResourceDefinition"
            rows = [_row("customresourcedefinitions", kind, namespaced=False)]
            return {
                "kind": "APIResourceList",
                "groupVersion": "apiextensions.k8s.io/v1",
                "resources": rows,
            }
        case "/apis":
            version = {"groupVersion": "apiextensions.k8s.io/v1", "version": "v1"}
            group = {"name": "apiextensions.k8s.io", "versions": [version]}
            groups = [group | {"preferredVersion": version}]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return {
        "kind": "SelfSubjectReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"userInfo": {"username": "bench"}},
    }


async def _nothing(request: web.Request) -> web.StreamResponse:
    """Answer for a resource that has no objects."""
    if "watch" not in request.query:
        return web.json_response(
            {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
        )
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


# --- The faults ----------------------------------------------------------------------------------


async def broken(world: World) -> None:
    """Every request for pods is answered with 500."""
    world.code = 500


async def too_old(world: World) -> None:
    """Every watch is answered with 410; a pod changes after 20 s."""
    world.watch = "410"
    world.cut()
    await asyncio.sleep(20)
    world.put("b")


async def short(world: World) -> None:
    """Every watch brings one event and ends, again and again, for 30 s."""
    world.watch = "once"
    world.cut()
    await asyncio.sleep(30)
    world.watch = ""
    world.put("b")


async def refused(world: World) -> None:
    """Nothing listens for 30 s, in which a pod changes and one is deleted."""
    await world.stop()
    await asyncio.sleep(15)
    world.put("a")
    world.delete("b")
    await asyncio.sleep(15)
    await world.again()


async def silent(world: World) -> None:
    """The connection stands, and nothing comes any more; then a pod changes."""
    world.silence()
    world.put("b")


async def endless(world: World) -> None:
    """Initial events are never followed by their bookmark; a pod changes after 20 s."""
    world.ends_initial_events = False
    world.version += 1  # a watch that goes on would hide the fault
    world.oldest = world.version
    world.cut()
    await asyncio.sleep(20)
    world.put("b")


async def restored(world: World) -> None:
    """The server is restored to older versions, without one of the pods."""
    world.restore(500)
    world.cut()


async def recreated(world: World) -> None:
    """A pod is deleted and created again while nothing listens; history is gone."""
    await world.stop()
    world.delete("a")
    world.put("a")
    world.oldest = world.version
    await asyncio.sleep(3)
    await world.again()


async def poisoned(world: World) -> None:
    """One pod comes with a spec that is no object; then another pod changes."""
    world.put("a", spec=5)
    await asyncio.sleep(1)
    world.put("b")


async def rotated(world: World) -> None:
    """The token in its file is replaced, and the old one refused; then a pod changes."""
    world.token = _TOKENS[1]
    world.token_file.write_text(_TOKENS[1], encoding="utf-8")
    world.cut()
    world.put("b")


Scenario = Callable[[World], Awaitable[None]]
#: By name: what happens, the seconds it is looked at, and the pods whose deletion is to be told.
SCENARIOS: Final[dict[str, tuple[Scenario, float, frozenset[str]]]] = {
    "500 for ever": (broken, SECONDS, frozenset()),
    "410 always": (too_old, SECONDS, frozenset()),
    "one event, then a clean end, for 30 s": (short, SECONDS, frozenset()),
    "refused for 30 s": (refused, SECONDS + 30, frozenset({"b"})),
    "silent peer": (silent, 2 * SECONDS, frozenset()),
    "initial events without end": (endless, SECONDS, frozenset()),
    "restored to lower versions": (restored, SECONDS, frozenset({"c"})),
    "deleted and created again while away": (recreated, SECONDS, frozenset({"a"})),
    "a poison item": (poisoned, SECONDS, frozenset()),
    "token rotated": (rotated, SECONDS, frozenset()),
}


# --- Measuring -----------------------------------------------------------------------------------


async def play(name: str, what: str) -> Figures:
    """Let a contestant meet a fault; return what it did."""
    scenario, seconds, deleted = SCENARIOS[what]
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        if what == "500 for ever":
            await scenario(world)
        if what == "token rotated":
            world.token = _TOKENS[0]
        await world.start()
        command = (
            [sys.executable, str(Path(__file__).with_name("report.py")), "client"]
            if name == OURS
            else [rivals_python(), str(Path(__file__).with_name("rivals.py")), name]
        )
        command += [world.url, "3", "--log", f"--token-file={world.token_file}"]
        printed = Path(folder) / "printed"
        with printed.open("wb") as out, (Path(folder) / "errors").open("wb") as errors:
            process = subprocess.Popen(command, stdout=out, stderr=errors)  # noqa: ASYNC220 - asyncio's would not tell the CPU
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(world.asked.wait(), START_SECONDS)
            began = time.monotonic()
            changed = began
            if what != "500 for ever":
                await asyncio.sleep(CALM_SECONDS)
                await scenario(world)
                changed = time.monotonic()
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
            pid, _, usage = os.wait4(process.pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
            ended = pid != 0
        finally:
            process.kill()
        if not ended:
            _, _, usage = await asyncio.to_thread(os.wait4, process.pid, 0)
        process.returncode = 0  # it has been waited for
        await world.stop()
        lines = printed.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [json.loads(line) for line in lines if line.startswith("[")]
    truth = {
        f"default/{pod}": one["metadata"]["resourceVersion"] for pod, one in world.pods.items()
    }
    return {
        "requests": sum(at - began <= 60 for at in world.requests),
        "seconds": None if what == "500 for ever" else _right_after(told, truth, changed),
        "lost": 0 if what == "500 for ever" else _lost(told, truth),
        "wrong": _wrong(told, {f"default/{pod}" for pod in deleted}),
        "cpu": round(usage.ru_utime + usage.ru_stime, 2),
        "ended": ended,
    }


def _views(told: Sequence[Sequence[Any]]) -> list[tuple[float, dict[str, str]]]:
    view: dict[str, str] = {}
    views = []
    for at, change, key, version in told:
        if change == "DELETED":
            view.pop(key, None)
        else:
            view[key] = version
        views.append((at, dict(view)))
    return views


def _right_after(
    told: Sequence[Sequence[Any]], truth: Mapping[str, str], changed: float
) -> float | None:
    """Return the seconds after a time from which on the view is the truth; None if it is not."""
    since = None
    for at, view in _views(told):
        if view != truth:
            since = None
        elif since is None:
            since = at
    return None if since is None else round(max(0.0, since - changed), 2)


def _lost(told: Sequence[Sequence[Any]], truth: Mapping[str, str]) -> int:
    """Return the number of pods whose last state is not the one told last."""
    views = _views(told)
    view = views[-1][1] if views else {}
    return sum(view.get(key) != truth.get(key) for key in view.keys() | truth.keys())


def _wrong(told: Sequence[Sequence[Any]], deleted: set[str]) -> int:
    """Return the number of deletions that were told and had not happened, or the other way."""
    return len({key for _, change, key, _ in told if change == "DELETED"} ^ deleted)


async def report(names: Sequence[str], only: str) -> Figures:
    """Play every fault to all contestants, two faults at a time."""
    load = os.getloadavg()[0]
    _ = rivals_python()
    found: dict[str, dict[str, Figures]] = {}
    two = asyncio.Semaphore(2)

    async def meet(what: str) -> None:
        async with two, asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(play(name, what)) for name in names}
        found[what] = {name: task.result() for name, task in tasks.items()}
        print(what, json.dumps(found[what]), file=sys.stderr, flush=True)

    async with asyncio.TaskGroup() as group:
        for what in SCENARIOS:
            if only in what:
                group.create_task(meet(what))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "load before": round(load, 2)},
        "faults": {what: found[what] for what in SCENARIOS if what in found},
    }


# --- The table -----------------------------------------------------------------------------------


def explanation(result: Mapping[str, Any]) -> str:
    """Return the text before the table."""
    lines = [
        (
            f"{result['date']}, {result['machine']['cores']} cores, load before "
            f"{result['machine']['load before']}; `python bench/faults.py --write`. Each client "
            "follows three pods of a scripted server, which then fails. A cell has the requests "
            "for pods in the first minute, the seconds from the end of the fault (or from the "
            "change that it hides) until the client was told the server's state, or *never* within "
            "the time of the test; the pods of which it was told something wrong about a deletion; "
            "and *ended* if its process ended, as where a plain loop over a watch raises."
        ),
        "",
    ]
    lines += [
        f"- **{what}**: {' '.join((how.__doc__ or '').split())}"
        for what, (how, _, _) in SCENARIOS.items()
    ]
    return "\n".join(lines)


def table(result: Mapping[str, Any]) -> str:
    """Return the table."""
    lines = [f"| fault | {' | '.join(CONTESTANTS)} |", "|---|" + "---|" * len(CONTESTANTS)]
    for what, clients in result["faults"].items():
        cells = [_cell(what, clients[name]) for name in CONTESTANTS]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    lines += ["", "CPU seconds of the process, start included:", ""]
    lines += [f"| fault | {' | '.join(CONTESTANTS)} |", "|---|" + "---:|" * len(CONTESTANTS)]
    for what, clients in result["faults"].items():
        costs = [clients[name]["cpu"] for name in CONTESTANTS]
        cells = [f"{cost:.1f}" for cost in costs]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(what: str, figures: Mapping[str, Any]) -> str:
    words = [f"{figures['requests']:,}"]
    if what != "500 for ever":
        words.append("never" if figures["seconds"] is None else f"{figures['seconds']:.1f} s")
    if figures["wrong"]:
        words.append(f"{figures['wrong']} wrong")
    if figures["ended"]:
        words.append("ended")
    return ", ".join(words)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--clients", default=",".join(CONTESTANTS), help="with commas")
    parser.add_argument("--write", action="store_true", help="write the results")
    options = parser.parse_args()
    result = asyncio.run(report(options.clients.split(","), options.only))
    if options.write:
        FAULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(table(result))


if __name__ == "__main__":
    main()
