"""Runs awaitables at the same time, and cancels all once one has failed."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def together(*works: Awaitable[Any]) -> None:
    """Await all of these at the same time. Raises the first failure, after the others have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
