"""What a fork must find finished and at rest, and what a process must end before it ends itself.

A child forked while another thread imports a module finds that module's lock held for ever
and hangs when it imports the same. Whatever imports or makes something late does it under
`guard`, which a fork holds over itself. What runs in a thread of its own is in `running`.
"""

import atexit
import os
import threading
from typing import Protocol


class Running(Protocol):
    """A thread that can hold still."""

    def pause(self) -> None:
        """Before a fork: hold still, with nothing open that a child must not find open."""

    def go_on(self) -> None:
        """After it, in the parent. In the child the thread does not exist."""

    def close(self) -> None:
        """End, within a bounded time."""


#: Replaced in a forked child, so always to be reached through the module.
guard = threading.RLock()

#: How many forks lie between this process and the first of its ancestors that ran this module.
generation = 0

running: set[Running] = set()

#: What a forked child found: never to be closed, since their sockets and files are the parent's.
_inherited: list[Running] = []


def _before() -> None:
    guard.acquire()  # first, so that nothing new begins to run
    for each in list(running):
        each.pause()


def _in_parent() -> None:
    for each in list(running):
        each.go_on()
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


#: Who is asked last was registered first, and what other modules hold over a fork must be held after what we do.
_foremost = 0


def watch() -> None:
    """Be asked before a fork, and before all who have asked for that so far."""
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
