"""Fork safety: pauses threads before a fork, and closes sessions before a process ends.

If a process is forked while another thread imports a module, the child finds that module's lock held forever, and
hangs when it imports the same module. Therefore lazy imports and lazy initialization run under `guard`, which a fork
also takes. `running` contains everything that has its own thread.

Before a fork, handlers run in the reverse order of their registration. `logging` and `concurrent.futures` hold locks
over a fork that an import or a session may need. They are imported first, so that our handler pauses everything
before those locks are taken. Code imported under `guard` must not register a before-fork handler: the fork that
waits for the import would run only the after-fork half of it.
"""

import atexit
import os
import threading
from contextlib import suppress
from typing import Protocol

with suppress(RuntimeError):  # while the interpreter shuts down, logging can no longer be imported
    import concurrent.futures.thread  # noqa: F401 - it imports logging


class Running(Protocol):
    """A thread that can pause."""

    def pause_for_fork(self) -> None:
        """Pause before a fork, without open files or sockets that a child process must not inherit."""

    def resume_after_fork(self) -> None:
        """Continue after the fork, in the parent. In the child process the thread does not exist."""

    def close(self) -> None:
        """End, within a bounded time."""


#: Replaced in a forked child process, so always access it through the module.
guard = threading.RLock()

running: set[Running] = set()

#: Objects that a forked child inherited. They are never closed: their sockets and files belong to the parent.
_inherited: list[Running] = []


def _before() -> None:
    guard.acquire()  # first, so that nothing new starts
    for each in list(running):
        each.pause_for_fork()


def _in_parent() -> None:
    for each in list(running):
        each.resume_after_fork()
    guard.release()


def _in_child() -> None:
    global guard
    guard = threading.RLock()
    _inherited.extend(running)
    running.clear()


@atexit.register
def _close_all() -> None:
    while running:
        running.pop().close()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
