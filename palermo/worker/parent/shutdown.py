"""The shutdown of a worker: after its jobs are done, after a timeout, immediately, or as a restart."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum

from palermo.worker.options import WorkerOptions
from palermo.worker.pools.pool import Pool
from palermo.worker.signals import SHUTDOWN_TIMEOUT, Action, ShutdownAction

log = logging.getLogger("palermo.worker")

#: Maximum seconds for settling after the last job has ended.
SETTLE_TIMEOUT = 5.0

#: Maximum seconds for the worker_exit hooks.
EXIT_TIMEOUT = 5.0

#: The worker's exit codes. Those of the command line are in palermo/cli/command_group.py.
DONE, FORCED, UNREACHABLE, STALLED = 0, 1, 3, 5


class RestartReason(Enum):
    """Why the worker restarts in the same process."""

    REQUESTED = "told to"  #: by the signal HUP
    TEMPLATE_DIED = "template died"  #: no slot can be forked without it


class Shutdown:
    """The shutdown of a worker: the requests so far, and their timers."""

    def __init__(
        self,
        options: WorkerOptions,
        pool: Pool,
        *,
        stop_taking: Callable[[], object],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        self._options = options
        self._pool = pool
        self._stop_taking = stop_taking
        #: Waits until the last job is settled, and runs the shutdown hooks.
        self._finish = finish
        self._finishing: asyncio.Future[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._interrupts = 0
        self._restart = self._forced = self._stalled = False
        #: Whether all jobs were killed, so that only settling remains.
        self.killed = False
        self.begun = asyncio.Event()
        #: The exit code or the reason to restart, set when the shutdown is complete.
        self.end: asyncio.Future[int | RestartReason] = asyncio.get_running_loop().create_future()

    @property
    def final(self) -> bool:
        """Whether the worker ends without a restart."""
        return self.begun.is_set() and not self._restart

    def obey(self, action: ShutdownAction) -> None:
        """Handle a signal. Later signals may make the shutdown faster, never slower."""
        if action is Action.RENEW and self.begun.is_set():
            return
        self._restart = action is Action.RENEW
        self._interrupts += action is Action.INTERRUPT
        if action in (Action.STOP, Action.INTERRUPT):
            self.stop(self._timeout)
        else:
            self.stop(self._options.shutdown_timeout if self._restart else None)
        if action is Action.ABANDON or self._interrupts > 1:
            self.kill()

    def give_up(self) -> None:
        """End as after TERM, with exit code STALLED, because the worker no longer receives jobs."""
        self._restart, self._stalled = False, True
        self.stop(self._timeout)

    def stop(self, timeout: float | None) -> None:
        """Take no more jobs, and end once the running ones have ended. They are terminated after `timeout` seconds."""
        first = not self.begun.is_set()
        self.begun.set()
        self._stop_taking()
        self._pool.drain()
        if timeout is not None:
            self._call_later(timeout, self._terminate)
        if first:
            self._finishing = asyncio.ensure_future(self._finish())
            self._finishing.add_done_callback(lambda _: self._complete())

    def kill(self) -> None:
        """Kill all running jobs now."""
        if not self.killed and not self.end.done():
            log.warning("killing the running jobs")
            self.killed = self._forced = True
            self._pool.kill()
            self._call_later(SETTLE_TIMEOUT, self._complete)

    def close(self) -> None:
        """Cancel the timers and the wait for the last job."""
        for timer in self._timers:
            timer.cancel()
        if self._finishing is not None:
            self._finishing.cancel()

    @property
    def _timeout(self) -> float:
        timeout = self._options.shutdown_timeout
        return SHUTDOWN_TIMEOUT if timeout is None else timeout

    def _terminate(self) -> None:
        if not self._forced and not self.end.done():
            log.warning("terminating the running jobs grace=%.1f", self._options.term_timeout)
            self._forced = True
            self._pool.terminate()
            self._call_later(self._options.term_timeout, self.kill)

    def _complete(self) -> None:
        if not self.end.done():
            code = STALLED if self._stalled else FORCED if self._forced else DONE
            self.end.set_result(RestartReason.REQUESTED if self._restart else code)

    def _call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))
