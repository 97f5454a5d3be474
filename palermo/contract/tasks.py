"""Start tasks in the background, and wait for several, for the first of several events, or without interruption."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from palermo.errors import PalermoError

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


async def together(*works: Awaitable[Any]) -> list[Any]:
    """Await all of these concurrently; return their results. Raises the first failure, once all have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        for ended in (await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))[0]:
            ended.result()
        return [task.result() for task in tasks]
    finally:
        # Once, because a second cancel would interrupt their cleanup.
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def finish(work: Awaitable[None]) -> None:
    """Run this to its end, even if the caller is cancelled. Ignores a lost session."""
    await uninterrupted(quietly(work))


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await this, and let it finish even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have been cancelled
    return await asyncio.shield(task)


async def quietly(closing: Awaitable[None]) -> None:
    """Await a call that closes something. Ignores a lost session."""
    try:
        await closing
    except PalermoError:
        return
