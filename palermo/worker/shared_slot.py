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

import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
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
from palermo.worker.seat_threads import SeatThreads
from palermo.worker.shared_interrupts import SharedInterrupts
from palermo.worker.slot import leave
from palermo.worker.stacks import coroutine_stack
from palermo.worker.titles import SharedTitle

#: Characters of a stack that are sent.
_MAX_STACK = 100_000

#: How many answers wait for the end of a loop's turn at most: the parent has something to do meanwhile.
_TOGETHER = 16


class Outbox:
    """Sends frames from many threads: what comes while one of them sends goes out with the next call to the system."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._later: Callable[[Callable[[], None]], object] | None = None
        self._scheduled = False

    def batch(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Have what `send_later` is given sent at the end of a turn of a loop, for which `later` calls."""
        self._later = later

    def send(self, frame: bytes) -> None:
        """Send it, or leave it to whoever sends now."""
        self._frames.append(frame)
        self._flush()

    def send_later(self, frame: bytes) -> None:
        """Send it at the end of the loop's turn; called by its thread alone."""
        self._frames.append(frame)
        if self._later is None or len(self._frames) >= _TOGETHER:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._later(self._turn_ended)

    def _flush(self) -> None:
        """Send what waits, or leave it to whoever sends now."""
        while self._frames and self._lock.acquire(blocking=False):
            try:
                self._write(b"".join([self._frames.popleft() for _ in range(len(self._frames))]))
            except OSError:  # the parent is gone, or a job closed our end
                leave(1)
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
            except BlockingIOError:  # a loop that reads from the pair has made it so
                poll = select.poll()
                poll.register(self._end, select.POLLOUT)
                poll.poll()


class Seat:
    """One slot, as its child sees it: it runs one job at a time."""

    def __init__(self, number: int, executor: Executor, interrupts: SharedInterrupts) -> None:
        self.number = number
        #: What is sent for a job that returned.
        self.success = len(success := b"+%d" % number).to_bytes(HEADER, "big") + success
        self.executor = executor
        self.interrupts = interrupts
        #: Takes what the job tells of itself, while one runs.
        self.reporter: Reporter | None = None
        #: The thread that runs a plain function for it, while one does; else 0.
        self.thread = 0


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
        self._threads = SeatThreads(slots)
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
        if frame[0] == "run":
            seat = self._take(frame[2])
            seat.reporter = Reporter(self._courier, seat.number)
            start(seat, unpack_message(frame[1]))
            return
        match frame:
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
        """Have a thread do this, and answer with what it gives."""
        self._threads.put(lambda: self._sit(seat, work))

    def _sit(self, seat: Seat, work: Callable[[], RunResult]) -> None:
        seat.thread = threading.get_ident()
        result = _result(work)
        seat.thread = 0
        # Before the thread begins another: one that kills the process must not take this one with it.
        self.done(seat, result, self.outbox.send)

    def done(self, seat: Seat, result: RunResult, send: Callable[[bytes], None]) -> None:
        """It has run its job; the parent hears how it went, by this way of the outbox."""
        flush()
        reporter, seat.reporter = seat.reporter, None
        if reporter is not None:
            reporter.end()
        if self._busy.pop(seat.number, None) is None:
            return
        self.title.show(len(self._busy))
        if result is SUCCEEDED:
            send(seat.success)
        else:
            send(pack_result(result, slot=seat.number))

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
        frame = sys._current_frames().get(seat.thread)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()


def _result(work: Callable[[], RunResult]) -> RunResult:
    try:
        return work()
    except BaseException as error:  # told in the instant between the job's own code and ours
        return raised(error)


def raised(error: BaseException) -> Raised:
    """The result of a job that this ended from outside of the executor."""
    return Raised(from_exception(error, failed_at=int(time.time())))
