"""The child of an async pool: one event loop, in which each slot is a task.

Plain functions would stop the loop for all, so they run in threads beside it. Hooks and
failure back ends of coroutine jobs run in the loop: what they wait for, all wait for.
"""

import asyncio
import contextvars
import inspect
import logging
import socket
from typing import NoReturn

from palermo.core.message import Message
from palermo.errors import JobNotFound
from palermo.registry import JobDefinition, Registry
from palermo.worker.pipe import Frames, load
from palermo.worker.process import new_event_loop
from palermo.worker.shared_slot import Seat, Seats, raised
from palermo.worker.slot import leave

log = logging.getLogger("palermo.worker")

#: Above 128 kB each read would be a piece of memory that the system gives and takes.
_READ = 65_536

#: Seconds between two titles.
_TITLE_EVERY = 0.5


class Coroutines:
    """The loop's side of all seats."""

    def __init__(self, end: socket.socket, seats: Seats, registry: Registry) -> None:
        self._end = end
        self._seats = seats
        self._registry = registry
        self._frames = Frames()
        #: By job, whether it is a coroutine function.
        self._awaitable: dict[str, bool] = {}
        #: The seats of the tasks that run a job.
        self._tasks: dict[asyncio.Task[None], Seat] = {}
        self._titling: asyncio.TimerHandle | None = None
        self._loop = new_event_loop()

    def serve(self) -> NoReturn:
        """Have seats run what comes through the pair until the parent closes it."""
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._end, self._read)
        self._seats.outbox.batch(self._loop.call_soon)
        self._seats.ready()
        while True:
            # Whatever a job does to the loop, its neighbours' tasks are still in it.
            try:
                self._loop.run_forever()
            except BaseException as error:
                log.error("a task that a job left behind would have ended the loop error=%r", repr(error))

    def _read(self) -> None:
        try:
            data = self._end.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # a job closed our end
            leave(1)
        if not data:
            leave(0)
        for payload in self._frames.feed(data):
            self._seats.obey(load(payload), self._start)
        if self._titling is None:
            self._titling = self._loop.call_later(_TITLE_EVERY, self._retitle)

    def _retitle(self) -> None:
        """See that the title is true, for as long as there may be something to say."""
        self._seats.title.show(self._seats.busy)
        resting = self._seats.title.true_at_rest
        self._titling = None if resting else self._loop.call_later(_TITLE_EVERY, self._retitle)

    def _start(self, seat: Seat, message: Message) -> None:
        if not self._is_awaitable(message.job):
            self._seats.run_in_thread(seat, message)
            return
        task = asyncio.Task(
            self._run(seat, message),
            loop=self._loop,
            name=f"{message.job} {message.id}",
            context=contextvars.copy_context(),
        )
        seat.interrupts.awaiter = task
        self._tasks[task] = seat
        task.add_done_callback(self._ended)

    async def _run(self, seat: Seat, message: Message) -> None:
        task = seat.interrupts.awaiter
        assert task is not None
        result = await seat.executor.run_async(message, seat.reporter)
        del self._tasks[task]
        task.remove_done_callback(self._ended)
        self._seats.done(seat, result, self._seats.outbox.send_later)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """It has ended before its result was sent."""
        seat = self._tasks.pop(task, None)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # Cancelled by a neighbour, before its first step, or by an error of ours.
        if seat is not None and error is not None:
            self._seats.done(seat, raised(error), self._seats.outbox.send_later)

    def _is_awaitable(self, job: str) -> bool:
        known = self._awaitable.get(job)
        if known is None:
            try:
                known = self._awaitable[job] = is_awaitable(self._registry.get(job))
            except JobNotFound:
                return False
        return known


def is_awaitable(definition: JobDefinition) -> bool:
    """Whether calling the job gives a coroutine."""
    code = getattr(definition.target, "process", None) if definition.is_class else definition.target
    return inspect.iscoroutinefunction(code)
