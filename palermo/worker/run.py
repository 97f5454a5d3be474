"""The way in: one worker in this process, from the fork of its template to its exit code."""

import gc
import logging
import os
import socket
import sys
import time
from contextlib import ExitStack

from palermo.worker.options import WorkerOptions
from palermo.worker.pidfile import Pidfile
from palermo.worker.pools import fork_runner
from palermo.worker.process import flush, new_event_loop, set_title
from palermo.worker.signals import ignore_renewal

log = logging.getLogger("palermo.worker")

#: Seconds between two starts anew, at least, should the template die again and again.
_ANEW_EVERY = 2.0


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
        metrics = None
        if options.settings.metrics_port is not None:
            from palermo.metrics.worker import listening

            metrics = stack.enter_context(listening(options.settings))

        def in_child() -> None:
            for ours in (pidfile, metrics):
                if ours is not None:
                    ours.close()

        # The collector writes to each object that it looks at, and so would have the processes share nothing.
        gc.freeze()
        runner = fork_runner(options, host=host, in_child=in_child)
        # Not before: the template, and the slots that it forks, would have all of it in their memory too.
        import asyncio

        from palermo.worker.ending import Anew
        from palermo.worker.parent import work

        with asyncio.Runner(loop_factory=new_event_loop) as loop:
            code = loop.run(work(options, runner, host=host, metrics=metrics))
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
