"""How a worker ends: once its jobs have finished, once its patience has, or at once; or to begin anew."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum

from palermo.worker.options import WorkerOptions
from palermo.worker.pool import Runner
from palermo.worker.signals import SHUTDOWN_TIMEOUT, TERM_GRACE, Action

log = logging.getLogger("palermo.worker")

#: Seconds that settling may still take once nothing runs any more.
LAST_WORDS = 5.0

#: Exit codes. What the command line itself ends with is in palermo/cli/edge.py.
DONE, FORCED, UNREACHABLE, DEAF = 0, 1, 3, 5


class Anew(Enum):
    """Not to end, but to begin anew in the same process."""

    TOLD = "told to"  #: by HUP
    RUNNER_GONE = "runner gone"  #: the template died


class Ending:
    """What was said about ending so far."""

    def __init__(
        self,
        options: WorkerOptions,
        runner: Runner,
        *,
        rest: Callable[[], object],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        self._options = options
        self._runner = runner
        #: Takes no more jobs.
        self._rest = rest
        #: Waits until the last job is settled, and says goodbye.
        self._finish = finish
        self._finishing: asyncio.Future[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._interrupts = 0
        self._anew = self._forced = self._deaf = False
        #: Whether all jobs were killed, and nothing is left to wait for but their settling.
        self.killed = False
        self.begun = asyncio.Event()
        #: How it ends, once it does.
        self.end: asyncio.Future[int | Anew] = asyncio.get_running_loop().create_future()

    @property
    def final(self) -> bool:
        """Whether the worker ends, and does not begin anew."""
        return self.begun.is_set() and not self._anew

    def obey(self, action: Action) -> None:
        """What a signal asks for. A later one may hurry, and never slow down."""
        match action:
            case Action.RENEW if not self.begun.is_set():
                self._anew = True
                self.stop(self._options.shutdown_timeout)
            case Action.FINISH:
                self._anew = False
                self.stop(self._options.shutdown_timeout)
            case Action.STOP:
                self._anew = False
                self.stop(self._patience)
            case Action.INTERRUPT:
                self._anew = False
                self._interrupts += 1
                self.stop(self._patience)
                if self._interrupts > 1:
                    self.kill()
            case Action.ABANDON:
                self._anew = False
                self.stop(None)
                self.kill()

    def give_up(self) -> None:
        """The worker gets no jobs any more: leave as after TERM, with a code that says so."""
        self._anew, self._deaf = False, True
        self.stop(self._patience)

    def stop(self, timeout: float | None) -> None:
        """Take no more jobs, and leave when the running ones have finished, or had this long to."""
        first = not self.begun.is_set()
        self.begun.set()
        self._rest()
        self._runner.drain()
        if timeout is not None:
            self._later(timeout, self._terminate)
        if first:
            self._finishing = asyncio.ensure_future(self._wait())

    def kill(self) -> None:
        """Kill everything that runs, now."""
        if not self.killed and not self.end.done():
            log.warning("killing the running jobs")
            self.killed = self._forced = True
            self._runner.kill()
            self._later(LAST_WORDS, self._leave)

    def close(self) -> None:
        """Forget all that is still planned."""
        for timer in self._timers:
            timer.cancel()
        if self._finishing is not None:
            self._finishing.cancel()

    @property
    def _patience(self) -> float:
        timeout = self._options.shutdown_timeout
        return SHUTDOWN_TIMEOUT if timeout is None else timeout

    def _terminate(self) -> None:
        if not self._forced and not self.end.done():
            log.warning("terminating the running jobs grace=%.1f", TERM_GRACE)
            self._forced = True
            self._runner.terminate()
            self._later(TERM_GRACE, self.kill)

    async def _wait(self) -> None:
        await self._finish()
        self._leave()

    def _leave(self) -> None:
        if not self.end.done():
            code = DEAF if self._deaf else FORCED if self._forced else DONE
            self.end.set_result(Anew.TOLD if self._anew else code)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))
