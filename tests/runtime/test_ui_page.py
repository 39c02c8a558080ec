"""The page of a manager."""

from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.runtime import TerminalError
from listwatch.runtime.key_state import KeyStates, Leadership
from listwatch.runtime.manager import Manager
from listwatch.runtime.ui_page import MAX_ROWS, UiPage
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter, RateLimiter
from observe.browser import open_page
from runtime.reconciler_world import World, widget


def page_of(world: World) -> UiPage:
    states = KeyStates(lambda: [world.reconciler], Leadership, world.clock)
    return UiPage(
        "<b>",
        states,
        leadership=Leadership,
        reconcilers=lambda: [world.reconciler],
        caches=lambda: world.caches,
        requests=lambda: None,
        clock=world.clock,
    )


async def test_the_overview_has_reconcilers_caches_troubles_and_what_was_done() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    for name in "ab":
        source.add(widget(name))
    world.outcomes["ns/a"] = [ValueError("no")] * 20
    async with world.running():
        found = page_of(world).overview()
        (of_widgets,) = world.caches
        size = of_widgets.indexer.stored_bytes()
    (reconciler,) = found.reconcilers
    assert (reconciler.name, reconciler.keys, reconciler.depth) == ("test", 2, 0)
    assert (reconciler.errors, reconciler.later) == (8, 1)
    (cache,) = found.caches
    assert (cache.name, cache.objects, cache.ready) == ("widget", 2, True)
    assert cache.bytes == size
    (trouble,) = found.troubled
    assert trouble.key == "ns/a"
    assert trouble.words.startswith("backing off: ")
    assert {each.key for each in found.recent} == {"ns/a", "ns/b"}
    assert len(found.failures) == 8
    assert found.failures[0].error.startswith("ValueError: no at reconciler_world.py:")


async def test_the_overview_of_many_keys_is_no_longer_than_that_of_some() -> None:
    sizes = []
    for count in (600, 3_000):
        world = World()
        world.reconciler.for_("widget")
        source = world.source("widget")
        for number in range(count):
            source.add(widget(f"w{number:05}"))
            if number % 10 == 0:
                world.outcomes[f"ns/w{number:05}"] = [TerminalError("no")]
        async with world.running():
            found = page_of(world).overview()
            (of_widgets,) = world.caches
            size = of_widgets.indexer.stored_bytes()
        (cache,) = found.caches
        assert cache.bytes == pytest.approx(size, rel=0.05)
        (reconciler,) = found.reconcilers
        assert (cache.objects, reconciler.keys, reconciler.troubled) == (count, count, count // 10)
        sizes.append(len(msgspec.json.encode(found)))
    assert sizes[1] < 1.1 * sizes[0] < 100_000


async def test_every_list_of_the_overview_is_bounded() -> None:
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    for number in range(3 * MAX_ROWS):
        source.add(widget(f"w{number}"))
        world.outcomes[f"ns/w{number}"] = [ValueError("no")]
    async with world.running():
        found = page_of(world).overview()
    assert len(found.failures) == MAX_ROWS
    assert len(found.recent) == MAX_ROWS
    assert len(found.troubled) <= MAX_ROWS


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"n": "0"}}


def make(server: EmbeddedAPIServer, **options: Any) -> Manager:
    app = Manager("app <b>", config=Config(server=server.url), **options)
    # So few retries that the first reconcile stays in the history.
    pace: RateLimiter[str] = ItemExponentialFailureRateLimiter(1.0, 1000.0)
    maps = app.reconciler("maps", rate_limiter=pace).for_("configmaps", namespace="default")

    @maps
    async def reconcile(key: str) -> None:
        name = key.rpartition("/")[2]
        await app.client.patch("configmaps", name, {"data": {"seen": "<i>yes</i>"}}, "default")
        if name == "bad":
            raise ValueError("<script>no luck</script>")

    return app


async def test_the_page_answers_own_names_and_loads_nothing_from_elsewhere(
    server: EmbeddedAPIServer,
) -> None:
    async with make(server) as app, aiohttp.ClientSession() as session:
        for path in ("/ui", "/ui/state", "/ui/key?key=x"):
            url = f"{app.health_url}{path}"
            async with session.get(url, headers={"Host": "evil.example"}) as response:
                assert response.status == 403
            async with session.get(url) as response:
                assert response.status == 200
        async with session.get(f"{app.health_url}/ui") as response:
            assert "<h1>app &lt;b&gt;</h1>" in await response.text()
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]


@pytest.mark.parametrize("ui", [False, True])
async def test_other_machines_see_the_page_only_if_asked_for(
    server: EmbeddedAPIServer, ui: bool
) -> None:
    app = make(server, ui=not ui)
    app.configure(ui=ui)
    pages = {page.path: page.anywhere for page in app._showing.pages()}
    assert pages == {"/debug/why": False, "/ui": ui, "/ui/state": ui, "/ui/key": ui}


@pytest.mark.proof
@pytest.mark.needs("chromium")
async def test_a_browser_shows_troubles_and_the_story_of_a_key(
    server: EmbeddedAPIServer, client: Client, tmp_path: Path
) -> None:
    for name in ("bad", "good"):
        await client.create(config_map(name))
    async with (
        make(server) as app,
        open_page(f"{app.health_url}/ui", tmp_path / "profile") as tab,
    ):
        await tab.until("document.querySelector('#link')?.textContent === 'live'")
        # While a key is reconciled it is in no trouble: the button comes and goes.
        found = "[...document.querySelectorAll('#troubled button')]"
        await tab.until(f"{found}.map(each => each.click()).length === 1")
        for words in (
            "<script>no luck</script>",
            "PATCH configmaps default/bad: 200",
            "<i>yes</i>",
        ):
            await tab.until(f"document.querySelector('#story').innerText.includes('{words}')")
        assert "maps" in await tab.evaluate("document.querySelector('#reconcilers').innerText")
        for width in (390, 820, 1280):
            for dark in (False, True):
                await tab.size(width, 800, dark=dark)
                over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert await tab.evaluate(over) == 0, width
        assert tab.complaints == []
