"""The shared children of a thread or async pool: the current one takes jobs, retired ones finish theirs."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from palermo.worker.limits import Limits
from palermo.worker.pools.children import CannotFork, Children
from palermo.worker.pools.shared_child import ChildOwner, SharedChild

log = logging.getLogger("palermo.worker")


class SharedChildren:
    """The children of one pool: starts, retires and replaces them."""

    def __init__(
        self,
        children: Children,
        limits: Limits,
        owner: ChildOwner,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`spawn` runs a coroutine in the background."""
        #: The children that live; of the retired ones those in which jobs run.
        self.living: set[SharedChild] = set()
        self._children = children
        self._limits = limits
        self._owner = owner
        self._spawn = spawn
        self._numbers = itertools.count(1)
        self._current: SharedChild | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def current(self) -> SharedChild | None:
        """The child that takes jobs now; None if there is none ready."""
        child = self._current
        if child is None or not child.open:
            return None
        if self._limits.replaces_processes:
            self.check_limits(child)
        return child if child.open else None

    async def open(self) -> SharedChild:
        """The child that takes jobs now; started if there is none. Raises CannotFork."""
        while (child := self.current) is None:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.ensure_future(self._start_current())
                # Retrieve the error: those that wait may have been cancelled by the time it fails.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            starting = self._starting
            await asyncio.wait({starting})
            starting.result()
        return child

    async def _start_current(self) -> None:
        self._current = await self.launch()

    async def launch(self) -> SharedChild:
        """Start a fresh child. Raises CannotFork."""
        child = SharedChild(next(self._numbers), self._owner)
        await self._children.launch(child, child.connect)
        self.living.add(child)
        return child

    def check_limits(self, child: SharedChild) -> None:
        """Retire the child if it has reached a limit; end it if it is retired and no job runs in it any more."""
        if not child.retired and self._limits.replaces_processes:
            why = self._limits.replace_reason(jobs=child.jobs, age=time.monotonic() - child.forked_at, pid=child.pid)
            if why:
                self.retire(child, why)
        if child.retired and not child.runs and child.pipe is not None:
            self.living.discard(child)
            self._spawn(self._children.end(child))

    def retire(self, child: SharedChild, why: str, *, level: int = logging.INFO) -> None:
        """Give the child no more jobs, and start a fresh one for the next jobs."""
        if child.retired:
            return
        child.retired = True
        log.log(
            logging.DEBUG if self._limits.max_jobs and level == logging.INFO else level,
            "slots replaced pid=%s jobs_left=%d reason=%r",
            child.pid,
            len(child.runs),
            why,
        )
        if not self._children.draining.is_set():
            self._spawn(self._have_one_ready())

    def ended(self, child: SharedChild) -> None:
        """A child has ended. If it was not retired, start another in its place."""
        self.living.discard(child)
        if child.retired or self._children.draining.is_set() or self._children.gone.is_set():
            return
        if not child.runs:
            log.warning("slots ended while idle pid=%s", child.pid)
        self._spawn(self._have_one_ready())

    def close(self) -> None:
        """Close the socket pairs of all children, which then exit."""
        for child in self.living:
            if child.pipe is not None:
                child.pipe.close()

    async def _have_one_ready(self) -> None:
        with suppress(CannotFork):
            await self.open()
