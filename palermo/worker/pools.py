"""The kinds of pool, by name, and the way into each: the fork of its template."""

import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

# What both sides of the fork need is imported before it, and so in memory once.
from palermo import broker, first_of, recorder, schedules  # noqa: F401
from palermo.worker import keeping, pipe, reporting, titles  # noqa: F401
from palermo.worker.options import WorkerOptions
from palermo.worker.process import nameless_file

if TYPE_CHECKING:
    from palermo.worker.pool import Runner

log = logging.getLogger("palermo.worker")


def fork_runner(options: WorkerOptions, *, host: str, in_child: Callable[[], None]) -> "Runner":
    """Fork the template of the pool that the options name, before there is an event loop, a connection or a thread.

    `in_child` lets go of what only the parent may hold. What only one side needs is imported there.
    """
    ours, theirs = socket.socketpair()
    stacks = nameless_file()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            in_child()
            from palermo.worker.template import Template

            Template(theirs, options, parent=parent, host=host, stacks=stacks).run()
        except BaseException:
            log.exception("template ended by an error of its own")
        finally:
            os._exit(70)
    theirs.close()
    from palermo.worker.children import Children
    from palermo.worker.stacks import StackFile

    children, answers = Children(ours, pid), StackFile(stacks)
    if options.pool == "process":
        from palermo.worker.runner import ProcessRunner

        return ProcessRunner(children, slots=options.concurrency, limits=options.limits, stacks=answers)
    from palermo.worker.shared_runner import SharedRunner

    return SharedRunner(children, limits=options.limits, stacks=answers)
