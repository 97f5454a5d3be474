"""Things done at the same time: none goes on once one has failed."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def together(*works: Awaitable[Any]) -> None:
    """Do all of these. Raises what the first raised that failed, when the others have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
