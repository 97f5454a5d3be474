"""The way in: one worker in this process, from the fork of its template to its exit code."""

import asyncio
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from palermo.errors import PalermoError
from palermo.metrics import worker as metered
from palermo.worker.ending import DONE, Anew
from palermo.worker.loop import Worker
from palermo.worker.notify import Notifier
from palermo.worker.options import WorkerOptions
from palermo.worker.pidfile import Pidfile
from palermo.worker.pool import Runner, Unstartable
from palermo.worker.pools import fork_runner
from palermo.worker.process import flush, new_event_loop, reap_orphans, set_title
from palermo.worker.signals import Action, SignalRow, ignore_renewal, listen

log = logging.getLogger("palermo.worker")

#: Seconds between two starts anew, at least, should the template die again and again.
_ANEW_EVERY = 2.0


class WorkerFailed(PalermoError):
    """The worker cannot start: its modules cannot be imported, or give it nothing to do."""


def run_worker(options: WorkerOptions) -> int:  # noqa: RET503 - the last line never returns
    """Work until told to stop; the exit code: 0 done, 1 running jobs had to be cut off, 3 a burst without its broker,
    5 ended by its own watchdog.

    Takes the process over: to be called in a fresh one, without event loop, threads or
    connections. Raises WorkerFailed for modules that cannot be imported, SettingInvalid
    for a pidfile in use, StoreInvalid for a file that cannot be a broker.
    """
    # First of all, since the command line may hold a password.
    set_title("palermo worker: starting")
    started = time.monotonic()
    with ExitStack() as stack:
        pidfile = stack.enter_context(Pidfile(options.pidfile)) if options.pidfile else None
        host = socket.gethostname()
        metrics = metered.listening(options.settings)
        if metrics is not None:
            stack.enter_context(metrics)

        def in_child() -> None:
            for ours in (pidfile, metrics):
                if ours is not None:
                    ours.close()

        # The collector writes to each object that it looks at, and so would have the processes share nothing.
        gc.freeze()
        runner = fork_runner(options, host=host, in_child=in_child)
        with asyncio.Runner(loop_factory=new_event_loop) as loop:
            code = loop.run(_work(options, runner, host=host, metrics=metrics))
    match code:
        case Anew.TOLD:
            log.info("starting anew pid=%d", os.getpid())
        case Anew.RUNNER_GONE:
            log.error("template %s, starting anew pid=%d", runner.ending, os.getpid())
            time.sleep(max(0.0, started + _ANEW_EVERY - time.monotonic()))
        case _:
            return code
    flush()
    ignore_renewal()
    # The same command in the same process, so that whoever watches this pid sees no change.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


async def _work(options: WorkerOptions, runner: Runner, *, host: str, metrics: socket.socket | None) -> int | Anew:
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(runner.start())
    told: list[Action] = []

    def cancel(row: SignalRow) -> None:
        # Until the modules are there, there is nothing to finish: any signal that ends a worker ends this one now,
        # and what is imported while the code changes again must be imported again.
        if row.action.ends or row.action is Action.RENEW:
            told.append(row.action)
            waiting.cancel()

    listen(loop, cancel, resque=options.resque_signals)
    orphans = asyncio.ensure_future(reap_orphans(but=runner.template)) if os.getpid() == 1 else None
    set_title(f"palermo worker: importing {','.join(options.modules)}")
    try:
        registered = await waiting
        worker = Worker(options, runner, registered, host=host, pid=os.getpid())
        listen(loop, worker.act, resque=options.resque_signals)
        async with metered.served(metrics, worker, options.settings, pool=options.pool), _told(worker):
            return await worker.run()
    except Unstartable as error:
        raise WorkerFailed(str(error)) from None
    except asyncio.CancelledError:
        runner.kill()
        return Anew.TOLD if told and all(action is Action.RENEW for action in told) else DONE
    finally:
        if orphans is not None:
            orphans.cancel()
        set_title("palermo worker: stopping")
        await runner.close()


@asynccontextmanager
async def _told(worker: Worker) -> AsyncIterator[None]:
    """A service manager, if one started this process, hears of the worker meanwhile."""
    notifier = Notifier.found()
    if notifier is None:
        yield
        return
    telling = asyncio.ensure_future(notifier.keep(worker))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait({telling})
        notifier.close()
