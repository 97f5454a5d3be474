"""Fork safety: what must be at rest before a fork, and what a process must close before it ends.

A child process forked while another thread imports a module finds that module's lock held for ever,
and hangs when it imports the same module. So code that imports or makes something late does it under
`guard`, which a fork also holds. `running` has everything that runs in a thread of its own.
"""

import atexit
import os
import threading
from typing import Protocol


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

#: How many forks lie between this process and the first of its ancestors that ran this module.
generation = 0

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
    global guard, generation
    guard = threading.RLock()
    generation += 1
    _inherited.extend(running)
    running.clear()


@atexit.register
def _close_all() -> None:
    while running:
        running.pop().close()


#: How often we have registered. Before a fork, handlers run in the reverse order of their registration. Only our newest
#: handler acts, so that we pause our threads before other modules take the locks that they hold over a fork.
_foremost = 0


def watch() -> None:
    """Register our fork handlers again: before a fork they run before all handlers registered so far."""
    global _foremost
    with guard:
        _foremost += 1
        mine = _foremost
        os.register_at_fork(
            before=lambda: _before() if mine == _foremost else None,
            after_in_parent=lambda: _in_parent() if mine == _foremost else None,
            after_in_child=lambda: _in_child() if mine == _foremost else None,
        )


watch()
