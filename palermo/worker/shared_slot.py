"""The child that several slots share: what a pool of threads and one of coroutines have in common.

It reads frames, has seats run what they bring, and answers with the number of the slot:

    parent -> child                               child -> parent
    (first thing, unasked)                        {"ready": true}
    ("run", message, slot)                        "+slot", or {"slot": …} and the result
                                                  {"slot": …, "report": …} while it runs
    ("crashed", message, failure, slot)           {"slot": …} and the result
    ("tell", slot, class, text)
    ("stack", slot)                               {"slot": …, "stack": text}
    ("ping",)                                     {"pong": true}
    end of file                                   leaves

How a seat runs a message is the pool's (threads.py, coroutines.py); plain functions run in
threads in both.
"""

import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from palermo import errors
from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import Raised, RunResult
from palermo.core.message import Message
from palermo.worker.executor import Executor
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.pipe import HEADER, pack_reply, pack_result, unpack_message
from palermo.worker.process import flush
from palermo.worker.reporting import Courier, Reporter
from palermo.worker.shared_interrupts import SharedInterrupts
from palermo.worker.slot import leave
from palermo.worker.stacks import coroutine_stack
from palermo.worker.titles import SharedTitle

log = logging.getLogger("palermo.worker")

#: Characters of a stack that are sent.
_MAX_STACK = 100_000


class Outbox:
    """Sends frames from many threads: what comes while one of them sends goes out with the next call to the system."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._loop_thread = 0
        self._later: Callable[[Callable[[], None]], object] | None = None

    def batch(self, later: Callable[[Callable[[], None]], object]) -> None:
        """From now on send what this thread, a loop's, has at the end of a turn, for which `later` calls."""
        self._loop_thread, self._later = threading.get_ident(), later

    def send(self, frame: bytes) -> None:
        """Send it, or leave it to whoever sends next."""
        self._frames.append(frame)
        if self._later is None or threading.get_ident() != self._loop_thread:
            self._flush()
        elif len(self._frames) == 1:
            self._later(self._flush)

    def _flush(self) -> None:
        while self._frames and self._lock.acquire(blocking=False):
            try:
                self._write(b"".join([self._frames.popleft() for _ in range(len(self._frames))]))
            except OSError:  # the parent is gone, or a job closed our end
                leave(1)
            finally:
                self._lock.release()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._end.send(left) :]
            except BlockingIOError:  # a loop that reads from the pair has made it so
                poll = select.poll()
                poll.register(self._end, select.POLLOUT)
                poll.poll()


class Seat:
    """One slot, as its child sees it: it runs one job at a time."""

    def __init__(self, number: int, executor: Executor, interrupts: SharedInterrupts) -> None:
        self.number = number
        self.executor = executor
        self.interrupts = interrupts
        #: Takes what the job tells of itself, while one runs.
        self.reporter: Reporter | None = None
        #: Made when the first plain function comes.
        self.thread: SeatThread | None = None


class Seats:
    """All slots of one child."""

    def __init__(
        self,
        end: socket.socket,
        *,
        pool: str,
        slots: int,
        executor: Callable[[int, SharedInterrupts], Executor],
    ) -> None:
        self.outbox = Outbox(end)
        self._courier = Courier(lambda frame: self.outbox.send(pack_reply(frame)))
        self._executor = executor
        self._seats: dict[int, Seat] = {}
        #: By number, those that run a job.
        self._busy: dict[int, Seat] = {}
        self.title = SharedTitle(pool, slots)

    @property
    def busy(self) -> int:
        """How many run a job."""
        return len(self._busy)

    def ready(self) -> None:
        """Tell the parent that jobs may come."""
        self.title.show(0)
        # Not when the first job reports something: what breaks into that could break into this.
        self._courier.start()
        self.outbox.send(pack_reply({"ready": True}))

    def obey(self, frame: tuple[Any, ...], start: Callable[[Seat, Message], None]) -> None:
        """Do what a frame says; `start` has a seat run a message."""
        match frame:
            case ("run", fields, number):
                seat = self._take(number)
                seat.reporter = Reporter(self._courier, number)
                start(seat, unpack_message(fields))
            case ("crashed", fields, values, number):
                seat, message, failure = self._take(number), unpack_message(fields), Failure(**values)
                self.in_thread(seat, lambda: seat.executor.crashed(message, failure))
            case ("tell", number, name, text):
                if number in self._busy:
                    self._busy[number].interrupts.tell(getattr(errors, name)(text))
            case ("stack", number):
                self.outbox.send(pack_reply({"slot": number, "stack": self._stack(number)[:_MAX_STACK]}))
            case ("ping",):
                self.outbox.send(pack_reply({"pong": True}))

    def run_in_thread(self, seat: Seat, message: Message) -> None:
        """Have it run the message in a thread of its own."""
        self.in_thread(seat, lambda: seat.executor.run(message, seat.reporter))

    def in_thread(self, seat: Seat, work: Callable[[], RunResult]) -> None:
        """Have its thread do this, and answer with what it gives."""
        if seat.thread is None:
            seat.thread = SeatThread(seat.number, lambda result: self.done(seat, result))
        seat.thread.inbox.put(work)

    def done(self, seat: Seat, result: RunResult) -> None:
        """It has run its job; the parent hears how it went."""
        flush()
        reporter, seat.reporter = seat.reporter, None
        if reporter is not None:
            reporter.end()
        if self._busy.pop(seat.number, None) is None:
            return
        self.title.show(len(self._busy))
        if result == SUCCEEDED:
            number = b"+%d" % seat.number
            self.outbox.send(len(number).to_bytes(HEADER, "big") + number)
        else:
            self.outbox.send(pack_result(result, slot=seat.number))

    def _take(self, number: int) -> Seat:
        seat = self._seats.get(number)
        if seat is None:
            interrupts = SharedInterrupts()
            seat = self._seats[number] = Seat(number, self._executor(number, interrupts), interrupts)
        self._busy[number] = seat
        seat.interrupts.begin()
        self.title.show(len(self._busy))
        return seat

    def _stack(self, number: int) -> str:
        seat = self._busy.get(number)
        if seat is None:
            return ""
        task = seat.interrupts.task
        if task is not None:
            return coroutine_stack(task)
        frame = sys._current_frames().get(seat.thread.ident or 0) if seat.thread is not None else None
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()


class SeatThread(threading.Thread):
    """The thread in which a seat runs plain functions, one after another."""

    def __init__(self, number: int, done: Callable[[RunResult], None]) -> None:
        super().__init__(name=f"palermo slot {number}", daemon=True)
        self.inbox: SimpleQueue[Callable[[], RunResult]] = SimpleQueue()
        self._done = done
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._done(_result(self.inbox.get()))
        except BaseException:
            log.exception("slot ended by an error of its own thread=%s", self.name)
            # As a process's slot would; the parent finds out whose job it was.
            os._exit(70)


def _result(work: Callable[[], RunResult]) -> RunResult:
    try:
        return work()
    except BaseException as error:  # told in the instant between the job's own code and ours
        return raised(error)


def raised(error: BaseException) -> Raised:
    """The result of a job that this ended from outside of the executor."""
    return Raised(from_exception(error, failed_at=int(time.time())))
