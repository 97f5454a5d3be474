"""The event loop for a slot's `async def` jobs, which run one after another.

It persists between jobs, so that a module-level database or HTTP client works in all of them. After each job, its
remaining tasks are cancelled.
"""

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from palermo.errors import JobError

log = logging.getLogger("palermo.worker")


class JobLoop:
    """An event loop, created for the first coroutine. Used by one thread at a time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine and return its value, or raise its error. Interrupts may also be raised."""
        loop = self._loop
        if loop is None or loop.is_closed():  # a job may have closed it
            # Created by the program's event loop policy, like in asyncio.run.
            loop = self._loop = asyncio.new_event_loop()
            weakref.finalize(self, _close, loop)
        asyncio.set_event_loop(loop)
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except JobError:
            if task.done():
                raise
            # An interrupt ended the loop. As in the other pools, the job may clean up, and even return.
            task.cancel()
            loop.run_until_complete(asyncio.wait({task}))
            if task.cancelled():
                raise
            return task.result()
        finally:
            if not loop.is_closed() and (left := asyncio.all_tasks(loop)):
                _cancel(loop, left, task)
            asyncio.set_event_loop(None)

    def close(self) -> None:
        """Close the loop and its unfinished generators."""
        if self._loop is not None:
            _close(self._loop)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed() and not loop.is_running():
        with suppress(Exception):  # the generators are user code
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, left: Iterable["asyncio.Task[Any]"], own: "asyncio.Task[Any]") -> None:
    """Cancel these tasks and wait for them to end. `own` is the job's own task if another task ended the loop."""
    names = sorted(f"{task.get_name()} ({_function(task)})" for task in left if task is not own)
    if names:
        log.warning("cancelled tasks that the job left behind tasks=%s", ", ".join(names))
    for task in left:
        task.cancel()
    for ended in loop.run_until_complete(asyncio.gather(*left, return_exceptions=True)):
        if isinstance(ended, Exception):
            log.debug("a cancelled task raised error=%r", repr(ended))


def _function(task: "asyncio.Task[Any]") -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))
