"""The worker's own process, beside its template: imported once that is forked, which need not know it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from palermo.broker import opener
from palermo.errors import PalermoError
from palermo.worker.ending import DONE, Anew
from palermo.worker.loop import Worker
from palermo.worker.notify import Notifier
from palermo.worker.options import WorkerOptions
from palermo.worker.pool import Runner, Unstartable
from palermo.worker.process import set_title
from palermo.worker.signals import Action, SignalRow, listen

#: Seconds between two looks for dead orphans.
_REAP_EVERY = 1.0


class WorkerFailed(PalermoError):
    """The worker cannot start: its modules cannot be imported, or give it nothing to do."""


async def work(options: WorkerOptions, runner: Runner, *, host: str, metrics: socket.socket | None) -> int | Anew:
    """Begin and end with the worker; the exit code, or why all must begin anew. Raises as run_worker does."""
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
    orphans = asyncio.ensure_future(_reap_orphans(but=runner.template)) if os.getpid() == 1 else None
    set_title(f"palermo worker: importing {','.join(options.modules)}")
    try:
        # What takes longest to import, and meanwhile the template imports the jobs.
        with suppress(PalermoError, ImportError, AttributeError):  # opening a session says it better
            opener(options.settings.address)
        registered = await waiting
        worker = Worker(options, runner, registered, host=host, pid=os.getpid())
        listen(loop, worker.act, resque=options.resque_signals)
        async with AsyncExitStack() as stack:
            if metrics is not None:
                from palermo.metrics.worker import served

                await stack.enter_async_context(served(metrics, worker, options.settings, pool=options.pool))
            await stack.enter_async_context(_told(worker))
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


async def _reap_orphans(*, but: int) -> None:
    """As process 1 of a container: bury, about once a second, what jobs left behind; never the child `but`.

    By looking and not on SIGCHLD, which may stand for any number of children.
    """
    while True:
        await asyncio.sleep(_REAP_EVERY)
        _reap(but)


def _reap(but: int) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
