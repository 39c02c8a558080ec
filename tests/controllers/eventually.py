"""Wait for other processes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 20) -> None:
    """Return once the condition holds; raise TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(0.02)
