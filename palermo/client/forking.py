"""Fork safety: pauses threads before a fork, and closes sessions before a process exits.

If a process forks while another thread is importing a module, the child finds that module's lock held forever, and
hangs when it imports the same module. Therefore lazy imports and lazy initialization hold `guard`, which a fork
acquires too. `running` contains every object with its own thread.

Before a fork, handlers run in the reverse order of their registration. `logging` and `concurrent.futures` register
handlers that hold locks during a fork. They are imported first, so that our handler runs before theirs: imports and
sessions may need those locks to finish. Code imported under `guard` must not register a before-fork handler, because a
fork that is waiting for the import would run only its after-fork half.
"""

import atexit
import os
import threading
from contextlib import suppress
from typing import Protocol

with suppress(RuntimeError):  # logging can't be imported during interpreter shutdown
    import concurrent.futures.thread  # noqa: F401 - it imports logging


class Running(Protocol):
    """An object with a thread that can pause."""

    def pause_for_fork(self) -> None:
        """Pause before a fork, and close files and sockets that a child must not inherit."""

    def resume_after_fork(self) -> None:
        """Continue after the fork, in the parent. The thread doesn't exist in the child."""

    def close(self) -> None:
        """End, within a bounded time."""


#: Replaced in a forked child process, so always access it through the module.
guard = threading.RLock()

running: set[Running] = set()

#: Objects that a forked child inherited. They are never closed, because their sockets and files belong to the parent.
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
