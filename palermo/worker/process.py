"""What the worker's processes do to themselves: titles, the tie to their parent, standard streams."""

import asyncio
import contextlib
import ctypes
import os
import sys

import setproctitle

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

#: Seconds between two looks for dead orphans.
_REAP_EVERY = 1.0


def set_title(text: str) -> None:
    """Show this in `ps` instead of the command line, which may hold a password. Costs about 1 µs."""
    setproctitle.setproctitle(text)


def die_with(parent: int) -> None:
    """Be killed when the process `parent`, which forked this one, ends in whatever way.

    Linux only; elsewhere the end of file on the socket pair ends an idle child, and a
    busy one when its job is done.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # It may have died before the tie was made.
    if os.getppid() != parent:
        os._exit(1)


def own_group() -> None:
    """Leave the terminal's foreground group, so that Ctrl-C reaches the parent alone, which decides."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


async def reap_orphans(*, but: int) -> None:
    """As process 1 of a container: bury, about once a second, what jobs left behind; never the child `but`.

    By looking and not on SIGCHLD, which may stand for any number of children.
    """
    while True:
        await asyncio.sleep(_REAP_EVERY)
        _reap(but)


def _reap(but: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)


def close_stdin() -> None:
    """Read nothing from standard input, which belongs to the terminal's user and not to jobs."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def flush() -> None:
    """Write out what was printed; the process may be killed, or leave without Python's own flush, at any time."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # A job may have closed or replaced them, and the reader of a pipe may be gone.
            continue


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, which is the faster one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
