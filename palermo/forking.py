"""What a fork waits for: the making of things at their first use.

A child forked while another thread imports a module finds that module's lock held for ever
and hangs when it imports the same. Whatever imports or makes something late does it under
`guard`, and a fork holds that lock over itself.
"""

import concurrent.futures.thread  # noqa: F401 - has handlers of its own, which must be there before a fork waits
import os
import threading

#: Replaced in a forked child, so always to be reached through the module.
guard = threading.RLock()


def _before() -> None:
    guard.acquire()


def _in_parent() -> None:
    guard.release()


def _in_child() -> None:
    global guard
    guard = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
