import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from listwatch.clock import Clock
from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.execute import Outcome
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.page import Page
from listwatch.observe.printing import Printer
from listwatch.observe.server import serve
from observe.browser import Tab, open_page


def _object(version: int, kind: str = "Pod", **fields: object) -> Object:
    meta = {"name": "web-1", "namespace": "shop", "resourceVersion": str(version)}
    return Object.from_dict({"kind": kind, "apiVersion": "v1", "metadata": meta, **fields})


def _update(kind: str = "Pod", **fields: object) -> Observation:
    old = _object(1, kind, **dict.fromkeys(fields, "before"))
    new = _object(2, kind, **fields)
    return Observation(ObservationType.UPDATED, "shop/web-1", new, old=old, resource="pods")


@asynccontextmanager
async def _served(page: Page) -> AsyncIterator[str]:
    async with serve("127.0.0.1:0", ObserveMetrics(), ready=lambda: True, page=page) as url:
        yield url


@asynccontextmanager
async def _shown(page: Page, folder: Path, path: str = "") -> AsyncIterator[Tab]:
    """Show the page in a browser, once it is live."""
    async with _served(page) as url, open_page(f"{url}{path}", folder / "profile") as tab:
        await tab.until("document.querySelector('#link')?.textContent === 'live'")
        yield tab


async def _events(response: aiohttp.ClientResponse, count: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    while len(found) < count:
        line = await response.content.readline()
        assert line, f"the page ended after {found}"
        if line.startswith(b"data: ") and b'"event":"hello"' not in line:
            found.append(json.loads(line[6:]))
    return found


async def test_a_page_gets_what_was_before_it_and_what_comes() -> None:
    page = Page("pods", Printer(), Clock())
    page.told(_update(spec="after"), "Updated")
    async with (
        _served(page) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/events") as response,
    ):
        assert response.content_type == "text/event-stream"
        (change,) = await _events(response, 1)
        assert change["type"] == "Updated"
        assert (change["namespace"], change["name"]) == ("shop", "web-1")
        assert ["spec", '"before"', '"after"'] in change["fields"]  # type: ignore[operator] # JSON
        page.started(1, _update(), ["./run", "shop", "web-1"])
        page.wrote(1, 2, b"x" * 100_000)
        page.wrote(1, 2, b"more")
        page.ended(1, Outcome(3, seconds=0.5))
        started, output, ended = await _events(response, 3)
        assert started["argv"] == ["./run", "shop", "web-1"]
        assert len(str(output["text"])) == 8192
        assert (ended["code"], ended["seconds"]) == (3, 0.5)


async def _greeting(session: aiohttp.ClientSession, url: str) -> dict[str, object]:
    async with session.get(f"{url}/events") as response:
        found: dict[str, object] = json.loads((await response.content.readline())[6:])
        return found


async def test_totals_count_from_the_start_not_what_is_kept() -> None:
    page = Page("pods", Printer(), Clock())
    for _ in range(1546):
        page.told(_update(spec="after"), "Updated")
    for run in range(3):
        page.started(run, _update(), ["./run"])
        page.ended(run, Outcome(run, seconds=0.5))
    async with _served(page) as url, aiohttp.ClientSession() as session:
        greeting = await _greeting(session, url)
    assert (greeting["title"], greeting["totals"]) == ("pods", [1546, 3, 2])


async def test_an_object_has_its_state_its_history_and_marked_gaps() -> None:
    page = Page("pods", Printer(), Clock())
    page.told(_update(spec="after"), "Updated")
    again = msgspec.structs.replace(_update(spec="later"), type=ObservationType.RELISTED)
    page.told(again, "Relisted")
    async with _served(page) as url, aiohttp.ClientSession() as session:
        where = {"resource": "pods", "key": "shop/web-1"}
        async with session.get(f"{url}/object", params=where) as response:
            found = await response.json()
        async with session.get(f"{url}/objects") as response:
            (row,) = (await response.json())["objects"]
        async with session.get(f"{url}/object", params={"key": "shop/none"}) as response:
            assert response.status == 404
    assert (row["type"], row["changes"], row["version"]) == ("Relisted", 2, "2")
    assert "spec: later" in found["text"]
    assert [bool(change["gap"]) for change in found["history"]] == [False, True]


async def test_only_the_last_hundred_deleted_objects_are_kept() -> None:
    page = Page("jobs", Printer(), Clock())
    for number in range(150):
        gone = Object.from_dict({"metadata": {"name": f"job-{number}", "namespace": "shop"}})
        page.told(Observation(ObservationType.DELETED, gone.key, gone, resource="jobs"), "Deleted")
    async with (
        _served(page) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/objects") as response,
    ):
        rows = (await response.json())["objects"]
    assert [row["name"] for row in rows] == [f"job-{number}" for number in range(50, 150)]


async def test_an_object_that_came_is_told_by_its_fields() -> None:
    page = Page("pods", Printer(), Clock())
    old, new = _object(1), _object(2, spec={"ports": [{"port": 80, "name": "http"}]})
    page.told(Observation(ObservationType.UPDATED, "shop/web-1", new, old=old), "Updated")
    async with (
        _served(page) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/events") as response,
    ):
        (change,) = await _events(response, 1)
    assert change["fields"] == [
        ["spec.ports[0].port", "(none)", "80"],
        ["spec.ports[0].name", "(none)", '"http"'],
    ]


async def test_a_secret_is_shown_without_its_values() -> None:
    page = Page("secrets", Printer(), Clock())
    secret = _object(2, "Secret", data={"key": "c2VjcmV0"})
    gained = Observation(
        ObservationType.UPDATED, "shop/web-1", secret, old=_object(1, "Secret"), resource="secrets"
    )
    page.told(gained, "Updated")
    async with _served(page) as url, aiohttp.ClientSession() as session:
        where = {"resource": "secrets", "key": "shop/web-1"}
        async with session.get(f"{url}/object", params=where) as response:
            text = await response.text()
    assert "c2VjcmV0" not in text
    assert "(hidden)" in text


async def test_the_values_of_secrets_are_not_sent() -> None:
    page = Page("secrets", Printer(), Clock())
    page.told(_update("Secret", data="c2VjcmV0"), "Updated")
    async with (
        _served(page) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/events") as response,
    ):
        (change,) = await _events(response, 1)
    assert "c2VjcmV0" not in json.dumps(change)


async def test_a_reader_that_is_too_slow_loses_the_oldest_and_is_told() -> None:
    page = Page("pods", Printer(), Clock())
    async with (
        _served(page) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/events") as response,
    ):
        page.told(_update(), "Updated")
        await _events(response, 1)
        for _ in range(5000):  # the page's task does not run meanwhile
            page.told(_update(), "Updated")
        (lost,) = await _events(response, 1)
    assert lost == {"event": "lost", "count": 3000}


async def test_it_answers_to_addresses_and_localhost_only() -> None:
    async with _served(Page("<b>", Printer(), Clock())) as url, aiohttp.ClientSession() as session:
        for host, status in (
            ("127.0.0.1:80", 200),
            ("localhost", 200),
            ("[::1]:80", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example:80", 403),
            ("", 403),
            ("[", 403),
            ("[::1", 403),
            ("::1]", 403),
            ("[localhost]", 403),
            ("[127.0.0.1]:80", 403),
            ("[fe80::1%25x]", 403),
            ("localhost:", 403),
            ("[::1]evil.example", 403),
            ("::1", 403),
            (":::", 403),
            ("a b", 403),
            ("127.0.0.1:99999999", 403),
            ("127.0.0.1:x", 403),
            ("127.0.0.1/@evil", 403),
            ("evil@127.0.0.1", 403),
            ("%00", 403),
            ("\udcff", 403),
        ):
            for path in ("/", "/events", "/metrics", "/none"):
                async with session.get(url + path, headers={"Host": host}) as response:
                    expected = 404 if path == "/none" and status == 200 else status
                    assert response.status == expected, (host, path)
                    if path == "/" and status == 200:
                        text = await response.text()
                        assert "<h1>&lt;b&gt;</h1>" in text
                        policy = response.headers["Content-Security-Policy"]
                        assert "default-src 'none'" in policy
                        assert "frame-ancestors 'none'" in policy


async def test_health_answers_by_any_name_and_the_rest_by_that_of_its_own_address() -> None:
    async with (
        serve("localhost:0", ObserveMetrics(), ready=lambda: True) as url,
        aiohttp.ClientSession() as session,
    ):
        for path in ("/healthz", "/readyz", "/healthz/ready"):
            async with session.get(url + path, headers={"Host": "any.example"}) as response:
                assert response.status == 200
        async with session.get(f"{url}/metrics", headers={"Host": "any.example"}) as response:
            assert response.status == 403
        async with session.get(f"{url}/metrics") as response:
            assert response.status == 200


async def test_an_open_page_does_not_hold_the_end_up() -> None:
    page = Page("pods", Printer(), Clock())
    async with aiohttp.ClientSession() as session:
        async with _served(page) as url:
            response = await session.get(f"{url}/events")
        async with asyncio.timeout(45):
            assert (await response.content.read()).count(b"data:") == 1  # the greeting


@pytest.mark.proof
@pytest.mark.needs("chromium")
async def test_a_browser_shows_changes_commands_and_filters(tmp_path: Path) -> None:
    page = Page("pods, nodes", Printer(), Clock())
    async with _shown(page, tmp_path) as tab:
        page.told(_update(spec="after"), "Updated")
        gone = Object.from_dict({"metadata": {"name": "db-0", "namespace": "other"}})
        page.told(Observation(ObservationType.DELETED, gone.key, gone, resource="pods"), "Deleted")
        page.started(1, _update(), ["./ok.sh", "shop", "web-1"])
        page.started(2, _update(), ["./bad.sh", "shop", "web-1"])
        page.wrote(2, 2, b"<script>no route</script>")
        page.ended(2, Outcome(3, seconds=0.5))
        await tab.until("document.querySelectorAll('#changes li').length === 2")
        words = [
            'spec: "before" → "after"',
            "./ok.sh shop web-1",
            "./bad.sh shop web-1 — exit status 3",
        ]
        await tab.until(f"{json.dumps(words)}.every(w => document.body.innerText.includes(w))")
        shown = await tab.evaluate("document.querySelector('#changes .head').innerText")
        assert "pods" in shown  # named, because several are observed
        output = await tab.evaluate("document.querySelector('#failed pre').textContent")
        await tab.evaluate("document.querySelector('#failed details').open = true")
        page.told(_update(spec="after"), "Updated")
        await tab.until("document.querySelector('#changes').innerText.includes('\\u00d72')")
        assert await tab.evaluate("document.querySelector('#failed details').open")
        assert output == "<script>no route</script>"
        assert await tab.evaluate("document.querySelector('#fails').textContent") == "1"
        await tab.evaluate(
            "document.querySelector('#type').value = 'Deleted';"
            "document.querySelector('#type').dispatchEvent(new Event('input'))"
        )
        await tab.until("document.querySelectorAll('#changes li').length === 1")
        assert "db-0" in await tab.evaluate("document.querySelector('#changes').innerText")
        for width in (360, 768, 1280):
            await tab.size(width, 800)
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await tab.evaluate(overflow) == 0, width
        assert tab.complaints == []


@pytest.mark.proof
@pytest.mark.needs("chromium")
async def test_a_browser_keeps_rows_searches_while_held_and_shows_objects(tmp_path: Path) -> None:
    page = Page("pods", Printer(), Clock())
    async with _shown(page, tmp_path, "/?q=AFTER") as tab:
        page.told(_update(spec="after"), "Updated")
        page.told(_update(status="other"), "Updated")
        await tab.until("document.querySelectorAll('#changes li').length === 1")
        await tab.evaluate("window.first_ = document.querySelector('#changes li'); first_.focus()")
        page.told(_update(data="after"), "Updated")
        await tab.until("document.querySelectorAll('#changes li').length === 2")
        assert await tab.evaluate("document.activeElement === first_ && first_.isConnected")
        await tab.evaluate("hold(); $('search').value = 'OTHER'; filtered()")
        page.told(_update(data="other"), "Updated")
        await tab.until("document.querySelector('#hold').textContent === 'Go on (1 new)'")
        assert await tab.evaluate("document.querySelectorAll('#changes li').length") == 1
        assert await tab.evaluate("location.search") == "?q=OTHER"
        await tab.evaluate("hold(); $('search').value = ''; filtered(); setView(true)")
        await tab.until("document.querySelectorAll('#objects li').length === 1")
        await tab.evaluate("document.querySelector('#objects a').click()")
        await tab.until("document.querySelectorAll('#object-box ol li').length === 4")
        assert "object=pods%2Fshop%2Fweb-1" in await tab.evaluate("location.search")
        assert tab.complaints == []


@pytest.mark.proof
@pytest.mark.needs("chromium")
async def test_a_browser_tells_arrays_and_objects_as_trees_of_all_levels(tmp_path: Path) -> None:
    page = Page("pods", Printer(), Clock())
    old = {"a": [{"b": {"c": 1, "d": [1, 2]}, "e": "x"}], "f": {"g": {"h": 1}}}
    new = {
        "a": [{"b": {"c": 2, "d": [1, 3, {"k": None}]}, "e": "y"}],
        "f": {"g": {"h": 2}},
        "l": [],
    }
    change = Observation(
        ObservationType.UPDATED,
        "shop/web-1",
        _object(2, spec=new),
        old=_object(1, spec=old),
        resource="pods",
    )
    async with _shown(page, tmp_path) as tab:
        page.told(change, "Updated")
        await tab.until("document.querySelectorAll('#changes li').length === 1")
        lines = await tab.evaluate(
            "[...document.querySelectorAll('#changes .fields > div')].map((line) => "
            "`${Math.round(parseFloat(line.style.paddingLeft) / 1.2)} ${line.textContent}`)"
        )
        assert lines == [
            "0 spec:",
            "1 a[0]:",
            "2 b:",
            "3 c: 1 → 2",
            "3 d:",
            "4 [1]: 2 → 3",
            "4 [2].k: + null",
            '2 e: "x" → "y"',
            "1 f.g.h: 1 → 2",
            "1 l: + []",
        ]
        assert tab.complaints == []


@pytest.mark.proof
@pytest.mark.needs("chromium")
async def test_a_browser_does_a_bounded_work_in_each_turn_of_a_storm(tmp_path: Path) -> None:
    """What takes time in a frame is counted: rows made, and nodes on the page."""
    page = Page("pods", Printer(), Clock())
    async with _shown(page, tmp_path) as tab:
        await tab.evaluate(
            "window.most = 0; const make = row, turn = show; let made = 0;"
            "row = (group) => { made++; return make(group); };"
            "show = () => { made = 0; turn(); most = Math.max(most, made); }; setInterval(show, 20)"
        )
        nodes = []
        for count in (2_000, 8_000):
            for number in range(count):
                meta = {"name": f"web-{number}", "namespace": "shop", "resourceVersion": "2"}
                obj = Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})
                seen = Observation(ObservationType.ADDED, obj.key, obj, resource="pods")
                page.told(seen, "Added")
                if not number % 100:
                    await asyncio.sleep(0)  # lets the page's stream be written
            await tab.until(
                f"document.querySelector('#changes li')?.innerText.includes('web-{count - 1}')"
            )
            await tab.until("!dirty")
            nodes.append(await tab.evaluate("document.querySelectorAll('*').length"))
        assert 0 < await tab.evaluate("most") <= await tab.evaluate("A_TURN")
        assert await tab.evaluate("document.querySelectorAll('#changes li').length") == 120
        assert nodes[1] == nodes[0]
        assert await tab.evaluate("groups.length <= 2 * KEEP && latest.size <= 2 * KEEP")
        assert tab.complaints == []


@pytest.mark.proof
@pytest.mark.needs("chromium")
async def test_every_control_of_the_page_has_a_role_and_a_name(tmp_path: Path) -> None:
    page = Page("pods, nodes", Printer(), Clock())
    async with _shown(page, tmp_path) as tab:
        page.told(_update(spec="after"), "Updated")
        page.started(1, _update(), ["./bad.sh"])
        page.ended(1, Outcome(3, seconds=0.5))
        await tab.until("document.querySelectorAll('#changes li, #failed details').length === 2")
        nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
        found = [
            (node["role"]["value"], node["name"]["value"])
            for node in nodes
            if not node["ignored"] and "name" in node
        ]
        controls = {"button", "combobox", "searchbox", "link", "image", "search", "region"}
        nameless = [role for role, name in found if role in controls - {"search"} and not name]
        assert nameless == []
        assert {role for role, _ in found} >= controls | {"heading", "list", "listitem", "status"}
        assert {name for role, name in found if role == "region"} >= {"Changes"}
