"""What the worker's processes do to themselves: titles, the tie to their parent, standard streams."""

import contextlib
import fcntl
import os
import sys
from typing import TYPE_CHECKING

import setproctitle

if TYPE_CHECKING:
    import asyncio

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def set_title(text: str) -> None:
    """Show this in `ps` instead of the command line, which may hold a password. Costs about 1 µs."""
    setproctitle.setproctitle(text)


def die_with(parent: int) -> None:
    """Be killed when the process `parent`, which forked this one, ends in whatever way.

    Linux only; elsewhere the end of file on the socket pair ends an idle child, and a
    busy one when its job is done.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # It may have died before the tie was made.
    if os.getppid() != parent:
        os._exit(1)


def own_group() -> None:
    """Leave the terminal's foreground group, so that Ctrl-C reaches the parent alone, which decides."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def close_stdin() -> None:
    """Read nothing from standard input, which belongs to the terminal's user and not to jobs."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def nameless_file() -> int:
    """The descriptor of an empty file without a name, for the processes that are forked from now on and this one."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("palermo-stacks")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    # Each write goes to the end as it is then, also after another process has emptied it.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def flush() -> None:
    """Write out what was printed; the process may be killed, or leave without Python's own flush, at any time."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # A job may have closed or replaced them, and the reader of a pipe may be gone.
            continue


def new_event_loop() -> "asyncio.AbstractEventLoop":
    """uvloop's where it is installed, which is the faster one."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
