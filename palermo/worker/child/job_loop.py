"""The event loop of a slot, in which it runs its `async def` jobs one after another.

It is kept from job to job, so that a client which a module keeps, of a database or of HTTP, works in each of them. When
a job ends, the tasks that it leaves behind are cancelled.
"""

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

log = logging.getLogger("palermo.worker")


class JobLoop:
    """An event loop, made when a first coroutine is run. One thread at a time may use it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await the coroutine; returns its value, or raises its error. An interrupt may be raised here as well."""
        loop = self._loop
        if loop is None or loop.is_closed():  # a job may close it
            # Of the kind that the program's event loop policy chooses, as in asyncio.run.
            loop = self._loop = asyncio.new_event_loop()
            weakref.finalize(self, _close, loop)
        asyncio.set_event_loop(loop)
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        finally:
            if not loop.is_closed() and (left := asyncio.all_tasks(loop)):
                _cancel(loop, left, task)
            asyncio.set_event_loop(None)

    def close(self) -> None:
        """Close the loop, with its generators that have not ended."""
        if self._loop is not None:
            _close(self._loop)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed() and not loop.is_running():
        with suppress(Exception):  # the generators are user code
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, left: Iterable["asyncio.Task[Any]"], own: "asyncio.Task[Any]") -> None:
    """Cancel these tasks and wait for their ends. `own` is the job itself, if an interrupt has come."""
    names = sorted(f"{task.get_name()} ({_function(task)})" for task in left if task is not own)
    if names:
        log.warning("the job left tasks behind, which are cancelled tasks=%s", ", ".join(names))
    for task in left:
        task.cancel()
    for ended in loop.run_until_complete(asyncio.gather(*left, return_exceptions=True)):
        if isinstance(ended, Exception):
            log.debug("a cancelled task raised error=%r", repr(ended))


def _function(task: "asyncio.Task[Any]") -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))
