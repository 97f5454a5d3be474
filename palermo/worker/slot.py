"""A slot: the child that runs jobs, one after another, in its main thread.

It reads a message, has the executor run it and answers with the result. It never sees
the broker of its parent, and it leaves by os._exit, so that what a job registered with
atexit, or the threads it left behind, cannot hold the worker up.
"""

import faulthandler
import os
import socket
import time
from contextlib import suppress
from typing import Any, NoReturn

from palermo import tracing
from palermo.core.failure import Failure
from palermo.worker import signals
from palermo.worker.executor import Executor
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.pipe import LATE, SUCCESS, BlockingPipe, pack_reply, pack_result, unpack_message
from palermo.worker.process import die_with, flush, own_group
from palermo.worker.reporting import Courier, Reporter
from palermo.worker.titles import SlotTitle

#: Seconds without a new job after which the title says idle.
_IDLE_AFTER = 0.05

#: Seconds that the parent has, to kill a slot whose job's claim has ended, before the slot ends itself.
_LATER_THAN_PARENT = 1.0


def prepare(end: socket.socket, *, template: int, stacks: int) -> None:
    """Make a freshly forked process a slot: first of all what ties it to its parent.

    `stacks` is a descriptor that its stacks are written to when the parent asks for them.
    """
    die_with(template)
    own_group()
    signals.survive()
    # In C, so that a job which holds the GIL or sits in C code is seen too.
    faulthandler.register(signals.DUMP, file=stacks, all_threads=True, chain=False)
    # What a job forks must not keep the pair open: its end is how the parent sees that the slot is gone.
    os.register_at_fork(after_in_child=end.close)


def serve(end: socket.socket, *, number: int, executor: Executor) -> NoReturn:
    """Run what comes through the pair until the parent closes it."""
    pipe = BlockingPipe(end)
    slot = Slot(pipe, SlotTitle(number), executor)
    try:
        pipe.write(pack_reply({"ready": True}))
        while slot.turn():
            pass
    except OSError:  # the parent is gone, or a job closed our end
        leave(1)
    leave(0)


class Slot:
    """What a slot does with each frame that its parent writes."""

    def __init__(self, pipe: BlockingPipe, title: SlotTitle, executor: Executor) -> None:
        self._pipe = pipe
        self._executor = executor
        self._courier = Courier(lambda frame: _report(pipe, frame))
        self._title = title
        title.idle()

    def turn(self) -> bool:
        """Run the next job and answer, or say that there is none; False once the parent is gone. Raises OSError."""
        title = self._title
        frame = self._pipe.read(_IDLE_AFTER if title.stale else None)
        if frame is None:
            return False
        if frame is LATE:
            title.idle()
        else:
            self._pipe.write(self._answer(frame))
        return True

    def _answer(self, frame: tuple[Any, ...]) -> bytes:
        executor, reporter = self._executor, Reporter(self._courier)
        message = unpack_message(frame[1])
        self._title.working(message.job, message.id, time.time())
        if frame[0] == "crashed":
            result = executor.crashed(message, Failure(**frame[2]))
        else:
            if message.lock_for is not None:
                # In C and in a thread of its own: a parent that stands still, or a job that holds the GIL, cannot keep
                # the job alive when another worker may have it.
                faulthandler.dump_traceback_later(message.lock_for + _LATER_THAN_PARENT, exit=True)
            try:
                result = executor.run(message, reporter)
            finally:
                if message.lock_for is not None:
                    faulthandler.cancel_dump_traceback_later()
            reporter.end()
        flush()
        return SUCCESS if result is SUCCEEDED else pack_result(result)


def _report(pipe: BlockingPipe, frame: dict[str, Any]) -> None:
    with suppress(OSError):  # the parent is gone, or a job closed our end: the slot's own thread finds that out
        pipe.write(pack_reply(frame))


def leave(status: int) -> NoReturn:
    """End this process now, with what was printed written out, and spans sent."""
    flush()
    tracing.flush()
    os._exit(status)
