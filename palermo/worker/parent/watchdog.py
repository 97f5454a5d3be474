"""The worker's watchdogs, which check that it still receives jobs and that its event loop still runs.

While a slot is idle, the first one asks the broker whether jobs wait in the worker's queues. If they do at several
consecutive checks and no slot gets one, the worker is stalled. It then opens another session and, if that doesn't help,
ends.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from palermo.errors import BrokerUnavailable, PalermoError
from palermo.worker.parent.broker_session import BrokerSession
from palermo.worker.parent.serving import served_queues
from palermo.worker.parent.shutdown import STALLED
from palermo.worker.parent.worker_state import WorkerState
from palermo.worker.signals import block_in_this_thread

log = logging.getLogger("palermo.worker")

#: Minimum seconds between checks.
CHECK_EVERY = 5.0

#: The pause after a check is at least this multiple of its duration, so that checks cost almost nothing.
PAUSE_FACTOR = 200.0

#: Number of consecutive checks at which the same queue must have waiting jobs.
CHECKS = 4

#: Seconds for the broker to answer a check.
ANSWER_TIMEOUT = 30.0

#: Maximum seconds without progress of the loop, not counting time while the process or the machine is suspended.
LOOP_TIMEOUT = 60.0


class StallWatchdog:
    """Detects that the worker receives no jobs although some are waiting."""

    def __init__(
        self,
        worker: WorkerState,
        *,
        idle: Callable[[], BrokerSession | None],
        give_up: Callable[[], None],
    ) -> None:
        """`idle` returns the session on which a slot is waiting for a job; `give_up` ends the worker."""
        self._worker = worker
        self._idle = idle
        self._give_up = give_up
        #: Number of jobs taken when another session was opened; None once a check has shown that the worker receives
        #: jobs.
        self._reopened_at: int | None = None
        #: Whether the last check got no answer in time.
        self._unanswered = False

    async def run(self) -> None:
        """Watch until cancelled, or until the worker is given up."""
        pause = CHECK_EVERY
        while True:
            taken = self._worker.taken
            await asyncio.sleep(pause)
            began = time.monotonic()
            session = self._idle()
            if session is None or taken != self._worker.taken:
                pause = CHECK_EVERY
                continue
            why = await self._stall_reason(session)
            pause = max(CHECK_EVERY, PAUSE_FACTOR * (time.monotonic() - began)) if not why else CHECK_EVERY
            if not why or session is not self._idle():
                continue
            if self._reopened_at == self._worker.taken:
                log.critical("worker gets no jobs even on another session, ending reason=%r", why)
                self._give_up()
                if self._unanswered:
                    # Running jobs can't be settled on this session, and slot tasks that wait on it wouldn't end.
                    self._worker.sessions.lose(session, BrokerUnavailable(why))
                return
            self._reopened_at = self._worker.taken
            log.error("worker gets no jobs, opening another session reason=%r", why)
            self._worker.sessions.lose(session, BrokerUnavailable(why))

    async def _stall_reason(self, session: BrokerSession) -> str:
        """Why the worker counts as stalled on this session, or ""."""
        taken = self._worker.taken
        unserved: set[str] = set()
        for check in range(CHECKS):
            if check:
                await asyncio.sleep(CHECK_EVERY)
            if session is not self._idle() or taken != self._worker.taken:
                return ""
            self._unanswered = False
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    waiting = set(await session.consumer.queues_with_jobs())
            except TimeoutError:
                self._unanswered = True
                return f"the broker did not report within {ANSWER_TIMEOUT:g} s whether jobs are waiting"
            except PalermoError:
                return ""  # lost or refused: the waiting slot gets the same error
            unserved = waiting & unserved if check else waiting
            if not unserved:
                self._reopened_at = None
                return ""
        unserved &= await self._served_queues(session)
        if not unserved or taken != self._worker.taken:
            return ""
        return (
            f"jobs are waiting in {', '.join(map(repr, sorted(unserved)))}, but none has arrived for"
            f" {(CHECKS - 1) * CHECK_EVERY:g} s"
        )

    async def _served_queues(self, session: BrokerSession) -> set[str]:
        """Return the worker's queues that aren't paused; empty if the broker doesn't answer."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                queues = await served_queues(session.broker, self._worker.selection)
        except (PalermoError, TimeoutError):
            return set()
        return {queue.name for queue in queues if not queue.paused}


class LoopWatchdog:
    """Exits if the event loop is blocked, so that other workers run the jobs again."""

    def __init__(self) -> None:
        self._turned = False
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_soon(self._turn)
        threading.Thread(target=self._watch, name="palermo-loop-watch", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._timer.cancel()

    def _turn(self) -> None:
        self._turned = True
        self._timer = self._loop.call_later(LOOP_TIMEOUT / 4, self._turn)

    def _watch(self) -> None:
        block_in_this_thread()
        # Counts this thread's own steps instead of the time, which also passes while the process is suspended.
        step, still = LOOP_TIMEOUT / 10, 0
        while still * step < LOOP_TIMEOUT:
            if self._over.wait(step):
                return
            still = 0 if self._turned else still + 1
            self._turned = False
        # The log may be a full pipe without a reader, so writing gets only one second.
        writing = threading.Thread(target=_write_stacks, daemon=True)
        writing.start()
        writing.join(1.0)
        os._exit(STALLED)


def _write_stacks() -> None:
    line = f"palermo: the worker's event loop has been blocked for {LOOP_TIMEOUT:g} s, ending pid={os.getpid()}"
    # Not faulthandler, which would hold the GIL while it waits for a reader.
    os.write(2, f"{line}\n{thread_stacks()}\n".encode(errors="replace"))


def thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
