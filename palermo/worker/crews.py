"""The children that the slots of a shared pool have: one takes the jobs, and those before it end with theirs."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from palermo.worker.children import Children, Gone
from palermo.worker.crew import Crew, Employer
from palermo.worker.limits import Limits

log = logging.getLogger("palermo.worker")


class Crews:
    """All children of one pool."""

    def __init__(
        self,
        children: Children,
        limits: Limits,
        employer: Employer,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`spawn` has something done that nobody waits for."""
        #: Those that are there, retired ones too as long as jobs run in them.
        self.living: set[Crew] = set()
        self._children = children
        self._limits = limits
        self._employer = employer
        self._spawn = spawn
        self._numbers = itertools.count(1)
        self._current: Crew | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def current(self) -> Crew | None:
        """The child that takes jobs now, if there is one and it need not be waited for."""
        crew = self._current
        if crew is None or not crew.open:
            return None
        if self._limits.wear:
            self.look_at(crew)
        return crew if crew.open else None

    async def open(self) -> Crew:
        """The child that takes jobs now. Raises Gone."""
        while (crew := self.current) is None:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.ensure_future(self._start_current())
            await asyncio.shield(self._starting)
        return crew

    async def _start_current(self) -> None:
        self._current = await self.launch()

    async def launch(self) -> Crew:
        """A fresh child. Raises Gone."""
        crew = Crew(next(self._numbers), self._employer)
        await self._children.launch(crew, crew.connect)
        self.living.add(crew)
        return crew

    def look_at(self, crew: Crew) -> None:
        """Retire it if it is due; end it if it is retired and nothing runs in it any more."""
        if not crew.retired and self._limits.wear:
            why = self._limits.worn(jobs=crew.jobs, age=time.monotonic() - crew.born, pid=crew.pid)
            if why:
                self.retire(crew, why)
        if crew.retired and not crew.runs and crew.pipe is not None:
            self.living.discard(crew)
            self._spawn(self._children.end(crew))

    def retire(self, crew: Crew, why: str) -> None:
        """Give it no more jobs, and have a fresh child ready for the next ones."""
        if crew.retired:
            return
        crew.retired = True
        log.log(
            logging.DEBUG if self._limits.max_jobs else logging.INFO,
            "slots replaced pid=%s jobs_left=%d reason=%r",
            crew.pid,
            len(crew.runs),
            why,
        )
        if not self._children.draining.is_set():
            self._spawn(self._have_one_ready())

    def ended(self, crew: Crew) -> None:
        """A child is gone; if it was not to go, another takes its place."""
        self.living.discard(crew)
        if crew.retired or self._children.draining.is_set() or self._children.gone.is_set():
            return
        if not crew.runs:
            log.warning("slots ended while idle pid=%s", crew.pid)
        self._spawn(self._have_one_ready())

    def close(self) -> None:
        """Tell all of them that there is nothing more to do."""
        for crew in self.living:
            if crew.pipe is not None:
                crew.pipe.close()

    async def _have_one_ready(self) -> None:
        with suppress(Gone):
            await self.open()
