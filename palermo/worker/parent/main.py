"""The parent's main function. Imported only after the fork, because the template doesn't need it."""

import asyncio
import gc
import os
import socket
from contextlib import AsyncExitStack, suppress
from typing import IO

from palermo import blocked_signals
from palermo.contract.broker import opener
from palermo.errors import PalermoError
from palermo.worker.options import WorkerFailed, WorkerOptions
from palermo.worker.parent.sd_notify import Notifier
from palermo.worker.parent.shutdown import DONE, RestartReason
from palermo.worker.parent.watchdog import LoopWatchdog
from palermo.worker.parent.worker import Worker
from palermo.worker.pools.forked_pool import ForkedPool
from palermo.worker.process import set_title
from palermo.worker.signals import Action, SignalRow, ignore_signals, listen

#: Seconds between checks for dead orphans.
_REAP_EVERY = 1.0


async def run_parent(
    options: WorkerOptions, pool: ForkedPool, *, host: str, metrics: socket.socket | None, starter: IO[bytes] | None
) -> int | RestartReason:
    """Run the worker. Returns its exit code or the reason to restart. Raises the same errors as run_worker.

    Writes one line to `starter` and closes it: the reason why the worker can't start, or an empty line. The caller has
    disabled the garbage collector; it is enabled here after the imports.
    """
    loop = asyncio.get_running_loop()
    importing = asyncio.ensure_future(pool.start())
    asked: list[Action] = []
    for_worker: list[SignalRow] = []
    ended: Worker | None = None

    def cancel(row: SignalRow) -> None:
        # Before the modules are imported, no job can run, so a signal that ends a worker does so immediately. RENEW
        # restarts it, because the code may have changed during the import.
        if row.action.ends or row.action is Action.RENEW:
            asked.append(row.action)
            importing.cancel()
        else:
            for_worker.append(row)

    listen(loop, cancel, resque=options.resque_signals)
    blocked_signals.unblock()
    orphans = asyncio.ensure_future(_reap_orphans(but=pool.children.template)) if os.getpid() == 1 else None
    set_title(f"palermo worker: importing {','.join(options.modules)}")
    try:
        # The broker's module takes longest to import. The template imports the jobs in the meantime.
        with suppress(PalermoError, ImportError, AttributeError):  # opening the session raises the better error
            opener(options.settings.address)
        # Exempt imported objects from the first full collection, which comes before the first job.
        gc.freeze()
        gc.enable()
        registered = await importing
        _notify_starter(starter, "")
        worker = Worker(options, pool, registered, host=host, pid=os.getpid(), show_title=set_title)
        listen(loop, worker.act, resque=options.resque_signals)
        for row in for_worker:
            worker.act(row)
        async with AsyncExitStack() as stack:
            if metrics is not None:
                from palermo.metrics.totals import Totals
                from palermo.metrics.worker import serve

                totals = Totals()
                worker.shared.job_events.count_run = totals.count
                served = serve(
                    metrics,
                    options.settings,
                    pool=options.pool,
                    totals=totals,
                    report=worker.report,
                    is_connected=lambda: worker.shared.sessions.current is not None,
                )
                await stack.enter_async_context(served)
            if (notifier := Notifier.found()) is not None:
                sessions, stopping = worker.shared.sessions, worker.shared.stopping
                informed = notifier.informed(worker.report, available=sessions.available, stopping=stopping)
                await stack.enter_async_context(informed)
            loop_watch = LoopWatchdog()
            try:
                code = await worker.run()
            finally:
                loop_watch.close()
            ended = worker
            if isinstance(code, RestartReason):
                blocked_signals.block()  # until this process has restarted
            else:
                ignore_signals(loop)
            return code
    except WorkerFailed as error:
        _notify_starter(starter, str(error))
        raise
    except asyncio.CancelledError:
        pool.children.kill()
        if asked and all(action is Action.RENEW for action in asked):
            blocked_signals.block()
            return RestartReason.REQUESTED
        ignore_signals(loop)
        return DONE
    finally:
        if orphans is not None:
            orphans.cancel()
        set_title("palermo worker: stopping")
        await pool.close()
        if ended is not None:
            ended.log_end()


def _notify_starter(starter: IO[bytes] | None, why: str) -> None:
    if starter is not None:
        with suppress(OSError), starter:  # the starter may have ended
            starter.write(f"{why}\n".encode(errors="replace"))


async def _reap_orphans(*, but: int) -> None:
    """As process 1 of a container, reap orphaned processes of jobs every second. Never reaps the child `but`.

    Polls, because one SIGCHLD may stand for several children.
    """
    while True:
        await asyncio.sleep(_REAP_EVERY)
        _reap(but)


def _reap(but: int) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
