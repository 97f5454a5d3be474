"""Runs one worker in this process, from forking its template to its exit code."""

import gc
import io
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

from palermo import blocked_signals

# Imported before the fork, so that both processes share the memory of these modules.
from palermo.client import recorded_jobs, recorder  # noqa: F401
from palermo.contract import broker, tasks  # noqa: F401
from palermo.core import latest  # noqa: F401
from palermo.settings.environment import keep_start_pipe, take_start_pipe
from palermo.worker import logs, registered  # noqa: F401
from palermo.worker.ipc import frames, pipes  # noqa: F401
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.pidfile import pidfile
from palermo.worker.process import end_by_atexit, flush, nameless_file, set_title

if TYPE_CHECKING:
    from palermo.worker.pools.forked_pool import ForkedPool

log = logging.getLogger("palermo.worker")

#: Minimum seconds between restarts, in case the template dies repeatedly, and seconds between checks for a signal until
#: then.
_RESTART_EVERY, _LOOK_EVERY = 2.0, 0.05


def run_worker(options: WorkerOptions) -> NoReturn:
    """Run the worker until it is stopped, and exit.

    0: done. 1: running jobs had to be killed. 3: a burst could not reach its broker. 5: ended by its own watchdog.
    Takes over the process, which must be fresh: without an event loop, threads or connections. Raises WorkerFailed if
    modules can't be imported, SettingInvalid for a pidfile in use, StoreInvalid for an unusable SQLite file, and
    BrokerRefused if the broker refuses the first session.
    """
    # first, because the command line may contain a password
    set_title("palermo worker: starting")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Even if Python doesn't buffer, so that a line that a job prints isn't mixed with another job's.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    # Until the template has its handlers and the parent's event loop is running.
    blocked_signals.block()
    started = time.monotonic()
    with ExitStack() as stack:
        held = stack.enter_context(pidfile(options.pidfile)) if options.pidfile else None
        host = socket.gethostname()
        metrics = None
        if options.settings.metrics_port is not None:
            from palermo.metrics.worker import listen

            metrics = stack.enter_context(listen(options.settings))

        starter = stack.enter_context(os.fdopen(descriptor, "wb")) if (descriptor := take_start_pipe()) else None

        def in_child() -> None:
            for ours in (held, metrics, starter):
                if ours is not None:
                    ours.close()

        # The garbage collector writes to every object that it visits, which would copy the shared pages.
        gc.freeze()
        pool = _fork_pool(options, host=host, in_child=in_child)
        logs.write_in_background()
        stack.callback(logs.drain)
        # Until run_parent has imported its modules, because the collector would visit permanent objects repeatedly.
        gc.disable()
        # Imported after the fork, so that the template and the slots don't have these modules in memory.
        import asyncio

        from palermo.event_loop import new_event_loop
        from palermo.worker.parent.main import run_parent
        from palermo.worker.parent.shutdown import RestartReason

        with asyncio.Runner(loop_factory=new_event_loop) as loop:
            code = loop.run(run_parent(options, pool, host=host, metrics=metrics, starter=starter))
        if isinstance(code, RestartReason) and starter is not None and not starter.closed:
            keep_start_pipe(starter.fileno())  # the starter is still waiting for the line
    match code:
        case RestartReason.REQUESTED:
            log.info("restarting pid=%d", os.getpid())
        case RestartReason.TEMPLATE_DIED:
            log.error("template %s, restarting pid=%d", pool.children.template_end, os.getpid())
            _rest_until(started + _RESTART_EVERY)
        case _:
            end_by_atexit(code)  # an ordinary exit takes 17 ms longer, because it releases every object
    logs.drain()
    flush()
    gc.collect()  # Release the locks of a lost session properly; exec would release them like a crash does.
    # The same command in the same process, so that a supervisor that watches this pid sees no change.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _fork_pool(options: WorkerOptions, *, host: str, in_child: Callable[[], None]) -> "ForkedPool":
    """Fork the template of the configured pool, and return the pool.

    Call this before there is an event loop, a connection or a thread. In the template, `in_child` closes everything
    that only the parent may hold. Modules that only one side needs are imported there.
    """
    ours, theirs = socket.socketpair()
    stacks, marks = nameless_file(), SharedMarks(options.concurrency)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            in_child()
            from palermo.worker.child.template import Template

            Template(theirs, options, parent=parent, host=host, stacks=stacks, marks=marks).run()
        except BaseException:
            log.exception("template ended with an internal error")
        finally:
            os._exit(70)
    theirs.close()
    from palermo.worker.pools.children import Children
    from palermo.worker.pools.forked_pool import ForkedPool

    return ForkedPool(
        Children(ours, pid),
        slots=options.concurrency,
        shared=options.pool != "process",
        limits=options.limits,
        stacks=stacks,
        marks=marks,
    )


def _rest_until(instant: float) -> None:
    """Wait until then by the monotonic clock, or until a signal arrives, which the worker handles when it restarts."""
    while (left := instant - time.monotonic()) > 0 and not blocked_signals.one_waits():
        time.sleep(min(left, _LOOK_EVERY))
