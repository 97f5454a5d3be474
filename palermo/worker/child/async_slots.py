"""The child process of an async pool: one event loop, in which each coroutine job is a task.

Plain functions would block the loop, so they run in threads beside it. Hooks and failure back ends of
coroutine jobs run in the loop: while one of them blocks, all jobs wait.
"""

import asyncio
import contextvars
import inspect
import logging
import socket
from typing import NoReturn

from palermo.core.message import Message
from palermo.errors import JobNotFound
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import Registry
from palermo.worker.child.shared_slots import SharedSlot, SharedSlots, raised
from palermo.worker.ipc.frames import FrameBuffer, load
from palermo.worker.process import exit_now, new_event_loop

log = logging.getLogger("palermo.worker")

#: Bytes in one read. Above 128 kB the system would map and unmap memory for each read.
_READ = 65_536

#: Seconds between two updates of the process title.
_TITLE_EVERY = 0.5


class AsyncSlots:
    """Runs the slots of an async pool in one event loop."""

    def __init__(self, end: socket.socket, slots: SharedSlots, registry: Registry) -> None:
        self._end = end
        self._slots = slots
        self._registry = registry
        self._frames = FrameBuffer()
        #: By job, whether it is a coroutine function.
        self._awaitable: dict[str, bool] = {}
        #: The slot of each task that runs a job.
        self._tasks: dict[asyncio.Task[None], SharedSlot] = {}
        self._titling: asyncio.TimerHandle | None = None
        self._loop = new_event_loop()

    def serve(self) -> NoReturn:
        """Run the jobs that the parent sends, until it closes the socket pair."""
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._end, self._read)
        self._slots.outbox.batch(self._loop.call_soon)
        self._slots.ready()
        while True:
            # Whatever a job does to the loop, the tasks of the other jobs are still in it: it runs again.
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
            exit_now(1)
        if not data:
            exit_now(0)
        for payload in self._frames.feed(data):
            self._slots.obey(load(payload), self._start)
        if self._titling is None:
            self._titling = self._loop.call_later(_TITLE_EVERY, self._retitle)

    def _retitle(self) -> None:
        """Update the process title, and again later unless the title says idle and that is true."""
        self._slots.title.show(self._slots.busy)
        resting = self._slots.title.true_at_rest
        self._titling = None if resting else self._loop.call_later(_TITLE_EVERY, self._retitle)

    def _start(self, slot: SharedSlot, message: Message) -> None:
        if not self._is_awaitable(message.job):
            self._slots.run_in_thread(slot, message)
            return
        task = asyncio.Task(
            self._run(slot, message),
            loop=self._loop,
            name=f"{message.job} {message.id}",
            context=contextvars.copy_context(),
        )
        slot.interrupts.job_task = task
        self._tasks[task] = slot
        task.add_done_callback(self._ended)

    async def _run(self, slot: SharedSlot, message: Message) -> None:
        task = slot.interrupts.job_task
        assert task is not None
        result = await slot.executor.run_async(message, slot.reporter)
        del self._tasks[task]
        task.remove_done_callback(self._ended)
        self._slots.done(slot, result, self._slots.outbox.send_later)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Send a failure for a task that ended before its result was sent."""
        slot = self._tasks.pop(task, None)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # Another job cancelled it before its first step, or Palermo has a bug.
        if slot is not None and error is not None:
            self._slots.done(slot, raised(error), self._slots.outbox.send_later)

    def _is_awaitable(self, job: str) -> bool:
        known = self._awaitable.get(job)
        if known is None:
            try:
                known = self._awaitable[job] = is_awaitable(self._registry.get(job))
            except JobNotFound:
                return False
        return known


def is_awaitable(definition: JobDefinition) -> bool:
    """Whether the job is a coroutine function, or a class whose `process` is one."""
    code = getattr(definition.target, "process", None) if definition.is_class else definition.target
    return inspect.iscoroutinefunction(code)
