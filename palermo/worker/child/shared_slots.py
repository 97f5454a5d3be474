"""The child process that all slots of a thread or async pool share.

It reads frames, runs their jobs, and answers with the slot's number:

    parent -> child                               child -> parent
    (at the start)                                Ready
    ("run", message, slot)                        "+slot", or Ended; Changed before it; Reported while it runs
    ("crashed", message, failure, slot)           Ended
    ("tell", slot, class, text)
    ("stack", slot)                               Stack
    end of file                                   exits

Plain functions run in threads in both pools. `serve_threads` serves a thread pool, and `AsyncSlots` an async pool.
"""

import asyncio
import contextvars
import inspect
import logging
import math
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, NoReturn

from palermo import errors
from palermo.contract import clock
from palermo.core.failure import from_exception
from palermo.core.lifecycle import SUCCEEDED, Raised, RunResult
from palermo.core.message import Message
from palermo.event_loop import new_event_loop
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import Registry
from palermo.worker.child.executor import Executor
from palermo.worker.child.interrupts import SharedInterrupts
from palermo.worker.child.process_state import PipeLost, ProcessState
from palermo.worker.child.reporting import Reporter, ReportSender
from palermo.worker.ipc.frames import (
    HEADER,
    MAX_STACK,
    Ended,
    FrameBuffer,
    Ready,
    Reported,
    Stack,
    changed,
    load,
    pack_answer,
    unpack_message,
)
from palermo.worker.process import Title, busy_slots, exit_now, flush

log = logging.getLogger("palermo.worker")


class JobThreads:
    """At most `most` threads, started on demand, that run plain functions for the slots.

    Handing each job to its own thread would take several thread switches, which cost more than a short job. Therefore a
    thread that finishes a job takes the next waiting one. To keep jobs from waiting behind a long one, a thread that
    starts a job while others wait first wakes another thread, which takes the next job as soon as it gets the GIL.
    """

    def __init__(self, most: int) -> None:
        """The caller must not have more than `most` unfinished calls."""
        self._most = most
        self._count = 0
        self._work: deque[Callable[[], None]] = deque()
        #: Number of calls given and finished. Several threads increment the second without a lock; a lost increment
        #: only starts one thread too many.
        self._given = self._done = 0
        #: Wakes an idle thread, and whether a woken thread hasn't looked for work yet.
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._waking = False

    def put(self, work: Callable[[], None]) -> None:
        """Call `work` in a thread. Must be called by one thread only."""
        self._work.append(work)
        self._given += 1
        if self._count < min(self._most, self._given - self._done):
            self._count += 1
            threading.Thread(target=self._run, name=f"palermo jobs {self._count}", daemon=True).start()
        self._wake_one()

    def _wake_one(self) -> None:
        if not self._waking:
            self._waking = True
            self._wakeups.put(None)

    def _run(self) -> None:
        work = self._work
        try:
            while True:
                self._wakeups.get()
                self._waking = False
                while work:
                    try:
                        do = work.popleft()
                    except IndexError:  # another thread was faster
                        break
                    if work:
                        self._wake_one()
                    do()
                    self._done += 1
        except BaseException:
            log.exception("job thread ended with an internal error thread=%s", threading.current_thread().name)
            # Like a slot of a process pool. The parent finds out whose job it was.
            os._exit(70)


#: Seconds between checks of the process state while jobs are running.
_LOOK_EVERY = 1.0

#: The attributes in which coroutines, generators and async generators store their frame and what they await.
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")

#: Maximum number of answers collected per loop iteration; the parent would be idle with more.
_TOGETHER = 16


class Outbox:
    """Sends frames from many threads. Frames that arrive while a thread is sending go out together in the next call."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._scheduled = False

    def send(self, frame: bytes) -> None:
        """Send a frame now, or leave it to the thread that is currently sending."""
        self._frames.append(frame)
        self._flush()

    def send_later(self, loop: asyncio.AbstractEventLoop, frame: bytes) -> None:
        """Send a frame at the end of the loop's iteration. Called only in the loop's thread."""
        self._frames.append(frame)
        if len(self._frames) >= _TOGETHER:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._turn_ended)

    def _flush(self) -> None:
        """Send the waiting frames, unless another thread is already sending."""
        while self._frames and self._lock.acquire(blocking=False):
            try:
                self._write(b"".join([self._frames.popleft() for _ in range(len(self._frames))]))
            except OSError:  # the parent is gone, or a job closed our end
                exit_now(1)
            finally:
                self._lock.release()

    def _turn_ended(self) -> None:
        self._scheduled = False
        self._flush()

    def _write(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            try:
                sent += self._end.send(data[sent:] if sent else data)
            except BlockingIOError:  # an event loop that reads from the socket made it non-blocking
                poll = select.poll()
                poll.register(self._end, select.POLLOUT)
                poll.poll()


class SharedSlot:
    """One slot of the shared child, which runs one job at a time."""

    def __init__(self, number: int, executor: Executor, interrupts: SharedInterrupts) -> None:
        self.number = number
        #: The complete frame for a successful job.
        self.success = len(success := b"+%d" % number).to_bytes(HEADER, "big") + success
        self.executor = executor
        self.interrupts = interrupts
        #: Receives the running job's progress and log lines.
        self.reporter: Reporter | None = None
        #: The thread that runs its plain function, or 0.
        self.thread = 0


class SharedSlots:
    def __init__(
        self,
        end: socket.socket,
        *,
        pool: str,
        slots: int,
        executor: Callable[[int, SharedInterrupts], Executor],
    ) -> None:
        self.outbox = Outbox(end)
        self._sender = ReportSender(lambda slot, report: self.outbox.send(pack_answer(Reported(slot, report))))
        self._executor = executor
        self._threads = JobThreads(slots)
        self._slots: dict[int, SharedSlot] = {}
        self._busy: dict[int, SharedSlot] = {}
        self._title = Title(
            lambda: f"palermo {pool} pool: {busy_slots(len(self._busy), slots) if self._busy else 'idle'}",
            self._sender.call_soon,
        )
        self._state = ProcessState(end.fileno(), shared=True)
        #: When the state was last checked, by the monotonic clock; infinite after a change was reported.
        self._looked = 0.0

    def ready(self) -> None:
        """Report to the parent that jobs can be sent."""
        self._title.update()
        # Not at a job's first report, because an interrupt of that job could interrupt the start of the thread.
        self._sender.start()
        self.outbox.send(pack_answer(Ready()))

    def obey(self, frame: tuple[Any, ...], start: Callable[[SharedSlot, Message], None]) -> None:
        """Execute a frame. `start` runs a message in a slot."""
        if frame[0] == "run":
            slot = self._take(frame[2])
            slot.reporter = Reporter(self._sender, slot.number)
            start(slot, unpack_message(frame[1]))
            return
        match frame:
            case ("crashed", fields, failure, number):
                slot, message = self._take(number), unpack_message(fields)
                self.in_thread(slot, lambda: slot.executor.crashed(message, failure))
            case ("tell", number, name, text):
                if number in self._busy:
                    self._busy[number].interrupts.interrupt(getattr(errors, name)(text))
            case ("stack", number):
                self.outbox.send(pack_answer(Stack(number, self._stack(number)[:MAX_STACK])))

    def close(self) -> None:
        """Close the event loops of idle slots."""
        for slot in self._slots.values():
            slot.executor.close()

    def run_in_thread(self, slot: SharedSlot, message: Message) -> None:
        self.in_thread(slot, lambda: slot.executor.run(message, slot.reporter))

    def in_thread(self, slot: SharedSlot, work: Callable[[], RunResult]) -> None:
        """Call `work` in a thread and send its result to the parent."""
        self._threads.put(lambda: self._run(slot, work))

    def _run(self, slot: SharedSlot, work: Callable[[], RunResult]) -> None:
        slot.thread = threading.get_ident()
        result = _result(work)
        slot.thread = 0
        # Send before the thread starts another job, which might kill the process.
        self.done(slot, result, self.outbox.send)

    def done(self, slot: SharedSlot, result: RunResult, send: Callable[[bytes], None]) -> None:
        """Send the result of the slot's job to the parent. `send` is a method of the outbox."""
        self._state.end_if_forked(slot.number)
        flush()
        reporter, slot.reporter = slot.reporter, None
        if reporter is not None:
            reporter.end()
        if self._busy.pop(slot.number, None) is None:
            return
        self._title.update()
        if changes := self._changes():
            send(changed(changes))
        if result is SUCCEEDED:
            send(slot.success)
        else:
            send(pack_answer(Ended(slot.number, result)))

    def _changes(self) -> str:
        """Return the changes that jobs have made to the process; each change is returned once. Checked when no job is
        running, and periodically.
        """
        now = time.monotonic()
        if now - self._looked < (_LOOK_EVERY if self._busy else 0.0):
            return ""
        self._looked = now
        try:
            changes = self._state.changes()
        except PipeLost as error:
            log.error("slots ended reason=%r", str(error))
            exit_now(1)
        if changes:
            self._looked = math.inf
        return changes

    def _take(self, number: int) -> SharedSlot:
        slot = self._slots.get(number)
        if slot is None:
            interrupts = SharedInterrupts()
            slot = self._slots[number] = SharedSlot(number, self._executor(number, interrupts), interrupts)
        self._busy[number] = slot
        slot.interrupts.begin()
        self._title.update()
        return slot

    def _stack(self, number: int) -> str:
        slot = self._busy.get(number)
        if slot is None:
            return ""
        task = slot.interrupts.task
        if task is not None:
            return _coroutine_stack(task)
        frame = sys._current_frames().get(slot.thread)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()


def _result(work: Callable[[], RunResult]) -> RunResult:
    try:
        return work()
    except BaseException as error:  # an interrupt that arrived just after the job's own code
        return raised(error)


def raised(error: BaseException) -> Raised:
    """Return the result for an error raised outside of the executor."""
    return Raised(from_exception(error, failed_at=int(clock.now())))


def _coroutine_stack(task: asyncio.Task[Any]) -> str:
    """Return a task's stack through all awaited coroutines, unlike Task.get_stack."""
    frames = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = next((found for name in _FRAMES if (found := getattr(waiting, name, None)) is not None), None)
        if frame is not None:
            code = frame.f_code
            frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        waiting = next((found for name in _NEXT if (found := getattr(waiting, name, None)) is not None), None)
    return f"Task {task.get_name()}:\n{''.join(traceback.StackSummary.from_list(frames).format())}".rstrip()


#: Bytes per read. Above 128 kB the memory would be mapped and unmapped for each read.
_READ = 65_536


def serve_threads(end: socket.socket, slots: SharedSlots, leave: Callable[[], NoReturn]) -> NoReturn:
    """Run a thread pool's jobs in threads, and read the parent's frames in this one.

    When the parent closes the socket pair, call `leave`, which exits.
    """
    frames = FrameBuffer()
    slots.ready()
    while True:
        try:
            data = end.recv(_READ)
        except OSError:  # a job closed our end
            exit_now(1)
        if not data:
            slots.close()
            leave()
        for payload in frames.feed(data):
            slots.obey(load(payload), slots.run_in_thread)


class AsyncSlots:
    """Runs an async pool's slots in one event loop, with a task for each coroutine job.

    Plain functions run in threads, because they would block the loop. Hooks and failure backends of coroutine jobs run
    in the loop, so all jobs wait while one of them blocks.
    """

    def __init__(
        self, end: socket.socket, slots: SharedSlots, registry: Registry, leave: Callable[[], NoReturn]
    ) -> None:
        self._end = end
        self._slots = slots
        self._registry = registry
        #: Ends the process.
        self._leave = leave
        self._frames = FrameBuffer()
        self._tasks: dict[asyncio.Task[None], SharedSlot] = {}
        self._loop = new_event_loop()
        #: Sends an answer at the end of the loop's iteration.
        self._send = partial(slots.outbox.send_later, self._loop)

    def serve(self) -> NoReturn:
        """Run the jobs sent by the parent until it closes the socket pair."""
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._end, self._read)
        self._slots.ready()
        while True:
            # A job may stop the loop. Run it again, because it still contains the tasks of other jobs.
            try:
                self._loop.run_forever()
            except BaseException as error:
                log.error("leftover task of a job tried to end the event loop error=%r", repr(error))

    def _read(self) -> None:
        try:
            data = self._end.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # a job closed our end
            exit_now(1)
        if not data:
            self._leave()
        for payload in self._frames.feed(data):
            self._slots.obey(load(payload), self._start)

    def _start(self, slot: SharedSlot, message: Message) -> None:
        if not is_awaitable(self._registry.find(message.job)):
            self._slots.run_in_thread(slot, message)
            return
        task = asyncio.Task(
            self._run(slot, message),
            loop=self._loop,
            name=f"{message.job} {message.id}",
            context=contextvars.copy_context(),
        )
        self._tasks[task] = slot
        task.add_done_callback(self._ended)

    async def _run(self, slot: SharedSlot, message: Message) -> None:
        result = await slot.executor.run_async(message, slot.reporter)
        task = asyncio.current_task(self._loop)
        assert task is not None
        del self._tasks[task]
        task.remove_done_callback(self._ended)
        self._slots.done(slot, result, self._send)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Send a failure for a task that ended without sending a result."""
        slot = self._tasks.pop(task, None)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # Another job cancelled it before its first step, or Palermo has a bug.
        if slot is not None and error is not None:
            self._slots.done(slot, raised(error), self._send)


@lru_cache(maxsize=1_024)
def is_awaitable(definition: JobDefinition | None) -> bool:
    """Whether the job, or its `process`, is a coroutine function; False for None."""
    if definition is None:
        return False
    code = getattr(definition.target, "process", None) if definition.is_class else definition.target
    return inspect.iscoroutinefunction(code)
