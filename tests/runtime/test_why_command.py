"""`listwatch why` asks the health port of a running manager."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from client.raw_server import refusing
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.cli import cli
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.clock import Clock
from listwatch.errors import ConfigError, NotFoundError
from listwatch.runtime.history import RECORDS_PER_KEY
from listwatch.runtime.manager import Manager
from listwatch.runtime.why import Answer, KeyState, Verdict
from listwatch.runtime.why_command import Teller, ask, forwarded
from listwatch.runtime.why_page import KeyAnswer, WhyDocument
from listwatch.testing.waiting import eventually
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter, RateLimiter
from runtime.test_why import failed, story


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def document(*answers: tuple[KeyState, str], similar: tuple[str, ...] = ()) -> WhyDocument:
    keys = [KeyAnswer(state, Answer(Verdict.DONE, words)) for state, words in answers]
    return WhyDocument(manager="app", time=0.0, keys=keys, similar=list(similar))


async def test_a_manager_answers_with_what_it_did(
    server: EmbeddedAPIServer, client: Client
) -> None:
    app = Manager("app", config=Config(server=server.url))
    # So few retries that the first reconcile stays in the history.
    pace: RateLimiter[str] = ItemExponentialFailureRateLimiter(0.05, 1000.0)
    maps = app.reconciler("maps", rate_limiter=pace).for_("configmaps", namespace="default")
    secret = "hunter2"

    @maps
    async def reconcile(key: str) -> None:
        name = key.rpartition("/")[2]
        await app.client.patch("configmaps", name, {"data": {"seen": "yes"}}, "default")
        await app.client.patch("secrets", "s", {"stringData": {"p": secret}}, "default")
        if name == "bad":
            raise ValueError("no luck")

    secret_map = {**config_map("s"), "kind": "Secret", "data": {"p": "b2xk"}}
    await client.create(secret_map)
    await client.create(config_map("bad"))
    lines: list[str] = []
    async with app:
        port = int(app.health_url.rpartition(":")[2])

        async def failed_often() -> bool:
            found = await ask(port, "default/bad", "", clock=Clock())
            return bool(found.keys) and found.keys[0].state.failures >= 2

        await eventually(failed_often)
        Teller("default/bad", "text", lines.append).tell(
            await ask(port, "default/bad", "", clock=Clock())
        )

        async def in_trouble() -> bool:
            # While a key is reconciled it is busy, and in no trouble.
            found = await ask(port, "", "", clock=Clock())
            return [each.state.key for each in found.keys] == ["default/bad"]

        await eventually(in_trouble)
        unknown = await ask(port, "default/ba", "", clock=Clock())
        with pytest.raises(ConfigError, match="is it the health port"):
            await ask(int(server.url.rpartition(":")[2]), "", "", clock=Clock())
        async with aiohttp.ClientSession() as session:
            url = f"{app.health_url}/debug/why"
            async with session.get(url, headers={"Host": "evil.example"}) as response:
                assert response.status == 403
    text = "\n".join(lines)
    assert "failure: ValueError: no luck at test_why_command.py:" in lines[0] or "being" in lines[0]
    assert "PATCH configmaps default/bad: 200 in" in text
    assert 'data: (none) → {"seen":"yes"}' in text or "data.seen" in text
    assert "PATCH secrets default/s: 200 in" in text
    assert "aHVudGVyMg" not in text
    assert secret not in text
    assert unknown.similar == ["default/bad"]


def test_without_trouble_it_says_so() -> None:
    lines: list[str] = []
    Teller("", "text", lines.append).tell(document())
    assert lines == ["no key is in trouble"]


def test_an_unknown_key_is_an_error_that_names_similar_ones() -> None:
    with pytest.raises(NotFoundError, match="no reconciler of app knows a/b; it knows a/bc"):
        Teller("a/b", "text", print).tell(document(similar=("a/bc",)))


def test_following_prints_only_what_is_new() -> None:
    lines: list[str] = []
    teller = Teller("ns/a", "text", lines.append)
    first = KeyState(reconciler="r", key="ns/a", total=12, stories=[story(1)])
    teller.tell(document((first, "calm")))
    assert lines[0] == "r ns/a: calm"
    assert lines[-1] == "  and 11 earlier reconciles, not kept"
    lines.clear()
    teller.tell(document((first, "calm")))
    assert lines == []
    later = KeyState(reconciler="r", key="ns/a", total=13, stories=[story(1), failed(number=2)])
    teller.tell(document((later, "worse")))
    assert [line for line in lines if "test-" in line] == [
        "  00:16:40Z test-2, woken by widgets ns/a updated at 7, waited 0 ms"
    ]
    assert lines[-1] == "r ns/a: worse"


def test_json_is_one_document_a_line_and_only_when_something_is_new() -> None:
    lines: list[str] = []
    teller = Teller("ns/a", "json", lines.append)
    state = KeyState(reconciler="r", key="ns/a", stories=[story()] * RECORDS_PER_KEY)
    for _ in range(2):
        teller.tell(document((state, "calm")))
    (line,) = lines
    assert json.loads(line)["keys"][0]["answer"] == {"verdict": "done", "words": "calm"}


def _kubectl(folder: Path, script: str) -> None:
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


async def test_a_pod_is_reached_by_kubectl_without_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = tmp_path / "said"
    _kubectl(
        tmp_path,
        f'printf "%s\\n" "$@" > {said}\n'
        'echo "Forwarding from 127.0.0.1:4321 -> 8080"\nexec sleep 60',
    )
    async with forwarded("web; true", 8080, ("--namespace=shop",), clock=Clock()) as port:
        assert port == 4321
    words = await asyncio.to_thread(said.read_text)
    assert words.splitlines() == [
        "--namespace=shop",
        "port-forward",
        "--address=127.0.0.1",
        "pod/web; true",
        ":8080",
    ]


async def test_what_kubectl_says_of_a_failure_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _kubectl(tmp_path, 'echo "pods \\"x\\" not found" >&2; exit 1')
    with pytest.raises(ConfigError, match='pod/x :8080: pods "x" not found'):
        async with forwarded("x", 8080, (), clock=Clock()):
            pass


async def test_an_answer_that_is_no_managers_is_refused() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"keys": 1})

    app = web.Application()
    app.router.add_get("/debug/why", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        with pytest.raises(ConfigError, match="is it the health port of a Manager"):
            await ask(port, "", "", clock=Clock())
    finally:
        await runner.cleanup()


def test_nothing_at_the_port_is_an_error_with_a_remedy() -> None:
    with refusing() as port:
        found = CliRunner().invoke(cli, ["why", "--port", str(port)])
    assert found.exit_code == 4
    assert "give its health port with --port, or --pod" in found.output


def test_options_of_kubectl_need_a_pod() -> None:
    found = CliRunner().invoke(cli, ["why", "-n", "shop"])
    assert found.exit_code == 2
    assert "need --pod" in found.output


def test_json_is_printable_and_keeps_its_meaning() -> None:
    lines: list[str] = []
    state = KeyState(reconciler="r", key="ns/\x9b31m\u202e\x7f")
    Teller("x", "json", lines.append).tell(document((state, "it is \x85done")))
    (line,) = lines
    assert line.isprintable()
    (found,) = json.loads(line)["keys"]
    assert (found["state"]["key"], found["answer"]["words"]) == (state.key, "it is \x85done")
