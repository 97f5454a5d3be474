"""A slot of a process pool: a child process that runs jobs, one after another, in its main thread.

It reads a message, runs it with the executor and sends the result. It has no access to the parent's broker session. It
exits with os._exit, so that threads left by a job can't delay the worker. The jobs' atexit functions run only with the
option run_atexit.
"""

import faulthandler
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from palermo.contract import clock
from palermo.core.lifecycle import SUCCEEDED
from palermo.worker import signals
from palermo.worker.child.executor import Executor
from palermo.worker.child.process_state import PipeLost, ProcessState
from palermo.worker.child.reporting import Reporter, ReportSender
from palermo.worker.ipc.frames import SUCCESS, Ended, Ready, Report, Reported, changed, pack_answer, unpack_message
from palermo.worker.ipc.pipes import TIMED_OUT, BlockingPipe
from palermo.worker.process import SlotTitle, die_with, exit_now, flush, own_group, use_ordinary_signal_stack

log = logging.getLogger("palermo.worker")

#: Seconds without a job after which the process title says idle.
_IDLE_AFTER = 0.05

#: Seconds that the parent has to kill a slot after its job's `rerun_after`, before the slot kills itself.
_LATER_THAN_PARENT = 1.0


def prepare(end: socket.socket, *, template: int, stacks: int) -> None:
    """Turn a newly forked process into a slot.

    `stacks` is the descriptor of the file to which it writes stacks on request.
    """
    die_with(template)
    own_group()
    signals.survive()
    # faulthandler works in C, so it can also show a job that holds the GIL or runs C code.
    faulthandler.register(signals.DUMP, file=stacks, all_threads=True, chain=False)
    use_ordinary_signal_stack()
    # A process forked by a job must not keep the socket pair open, because the parent detects the slot's end by its
    # closing.
    os.register_at_fork(after_in_child=end.close)


def serve(end: socket.socket, *, number: int, executor: Executor, leave: Callable[[], NoReturn]) -> NoReturn:
    """Run the jobs sent by the parent until it closes the socket pair, then call `leave`."""
    pipe = BlockingPipe(end)
    slot = Slot(pipe, SlotTitle(number), executor)
    try:
        pipe.write(pack_answer(Ready()))
        while slot.turn():
            pass
    except PipeLost as error:
        log.error("slot ended slot=%d reason=%r", number, str(error))
        exit_now(1)
    except OSError:  # the parent is gone, or a job closed our end
        exit_now(1)
    executor.close()
    leave()


class Slot:
    """Runs the job of each frame sent by the parent."""

    def __init__(self, pipe: BlockingPipe, title: SlotTitle, executor: Executor) -> None:
        self._pipe = pipe
        self._executor = executor
        self._sender = ReportSender(partial(_report, pipe))
        self._title = title
        self._state = ProcessState(pipe.fileno())
        title.idle()

    def turn(self) -> bool:
        """Run the next job and answer, or show the idle title. Returns False once the parent is gone.

        Raises OSError, PipeLost.
        """
        title = self._title
        frame = self._pipe.read(_IDLE_AFTER if title.stale else None)
        if frame is None:
            return False
        if frame is TIMED_OUT:
            title.idle()
        else:
            self._pipe.write(self._answer(frame))
        return True

    def _answer(self, frame: tuple[Any, ...]) -> bytes:
        executor, reporter = self._executor, Reporter(self._sender, self._title.slot)
        message = unpack_message(frame[1])
        self._title.working(message.job, message.id, clock.now())
        if frame[0] == "crashed":
            result = executor.crashed(message, frame[2])
        else:
            if message.rerun_after is not None:
                # faulthandler works in C and in its own thread, so this ends the job even if the parent is stopped or
                # the job holds the GIL. Another worker may have the job by then.
                faulthandler.dump_traceback_later(message.rerun_after + _LATER_THAN_PARENT, exit=True)
            try:
                result = executor.run(message, reporter)
            finally:
                self._state.end_if_forked(self._title.slot)
                if message.rerun_after is not None:
                    faulthandler.cancel_dump_traceback_later()
            reporter.end()
        flush()
        answer = SUCCESS if result is SUCCEEDED else pack_answer(Ended(self._title.slot, result))
        changes = self._state.changes()
        # Before the result; otherwise the parent might send the next job to a process that it must replace.
        return changed(changes) + answer if changes else answer


def _report(pipe: BlockingPipe, slot: int, report: Report) -> None:
    with suppress(OSError):  # the parent is gone, or a job closed our end; the main thread will notice too
        pipe.write(pack_answer(Reported(slot, report)))
