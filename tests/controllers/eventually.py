"""Waiting for what other processes do."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 20) -> None:
    """Return once the condition holds; fail when it does not within so many seconds."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(0.02)
