"""Ways to await: several at the same time, one to its end, and one whatever its session says."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from palermo.errors import PalermoError


async def together(*works: Awaitable[Any]) -> None:
    """Await all of these at the same time. Raises the first failure, after the others have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def finish(work: Awaitable[None]) -> None:
    """Run this to its end, even if the caller is cancelled again; ignore that its session may be gone already."""
    await asyncio.shield(quietly(work))


async def quietly(closing: Awaitable[None]) -> None:
    """Await the end of something, and ignore that its session may be gone already."""
    try:
        await closing
    except PalermoError:
        return
