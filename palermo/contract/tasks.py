"""Start tasks in the background, and wait for the first of several events."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def spawn(tasks: set[asyncio.Task[T]] | set[asyncio.Future[T]], work: Awaitable[T]) -> asyncio.Task[T]:
    """Start a task and keep it in `tasks` until it ends, since the event loop holds only a weak reference."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def wait_for_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until one of these is set, for at most `timeout` seconds."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
