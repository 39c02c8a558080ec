"""Headless Chromium, driven over the DevTools protocol, for tests of pages."""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

import components
from listwatch.testing.waiting import eventually


class Tab:
    """An open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=20)
            if answer.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
                self.complaints.append(str(answer["params"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def evaluate(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 45) -> None:
        await eventually(lambda: self.evaluate(expression), expression, seconds=seconds)

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@asynccontextmanager
async def open_page(url: str, profile: Path) -> AsyncIterator[Tab]:
    """Open a page in a new browser, which ends with the body."""
    process = await asyncio.create_subprocess_exec(
        components.path("chromium"), "--headless", "--no-sandbox", "--disable-gpu",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run", "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:

        def port_and_path() -> list[str]:
            if process.returncode is not None:
                raise RuntimeError("the browser ended")
            # The file is made empty, and written afterwards.
            words = (profile / "DevToolsActivePort").read_text().split()
            return words if len(words) == 2 else []

        port, _ = await eventually(
            lambda: asyncio.to_thread(port_and_path), "the browser", ignoring=FileNotFoundError
        )
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                (target,) = [t for t in await answer.json() if t["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                await tab.call("Page.navigate", url=url)
                yield tab
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
