"""Fork safety: what must pause before a fork, and what a process must close before it ends.

A child process forked while another thread imports a module finds that module's lock held forever, and hangs when it
imports the same module. So code that imports or makes something late does it under `guard`, which a fork also holds.
`running` has everything that runs in a thread of its own.

Before a fork, handlers run in the reverse order of their registration. `logging` and `concurrent.futures` hold locks
over a fork that an import or a session may need, so they are imported first: ours pause everything before those locks
are taken. Nothing that is imported under `guard` may register a handler for before the fork: the fork that waits for
the import would run only the half of it that comes after the fork.
"""

import atexit
import os
import threading
from contextlib import suppress
from typing import Protocol

with suppress(RuntimeError):  # a program that is ending can import logging, and no more
    import concurrent.futures.thread  # noqa: F401 - it imports logging


class Running(Protocol):
    """A thread that can pause."""

    def pause_for_fork(self) -> None:
        """Before a fork: pause, with nothing open that a child process must not find open."""

    def resume_after_fork(self) -> None:
        """After the fork, in the parent: continue. In the child process the thread does not exist."""

    def close(self) -> None:
        """End, within a bounded time."""


#: Replaced in a forked child process, so always to be reached through the module.
guard = threading.RLock()

running: set[Running] = set()

#: What a forked child process found running. It is never closed, since its sockets and files are the parent's.
_inherited: list[Running] = []


def _before() -> None:
    guard.acquire()  # first, so that nothing new begins to run
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
