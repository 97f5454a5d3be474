"""Forks the template of a pool, and makes the pool."""

import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

# Modules that both sides of the fork need are imported before it, so that the processes share their memory.
from palermo.client import recorded_jobs, recorder  # noqa: F401
from palermo.contract import broker, tasks  # noqa: F401
from palermo.core import latest  # noqa: F401
from palermo.worker import registered  # noqa: F401
from palermo.worker.ipc import frames, pipes  # noqa: F401
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.options import WorkerOptions
from palermo.worker.process import nameless_file

if TYPE_CHECKING:
    from palermo.worker.pools.forked_pool import ForkedPool

log = logging.getLogger("palermo.worker")


def fork_pool(options: WorkerOptions, *, host: str, in_child: Callable[[], None]) -> "ForkedPool":
    """Fork the template of the pool that the options name, and return the pool.

    To be called before there is an event loop, a connection or a thread. In the template, `in_child` closes what only
    the parent may hold. Modules that only one side needs are imported on that side.
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
            log.exception("template ended by an error of its own")
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
