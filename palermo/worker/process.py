"""A worker's process: its title, standard streams, file for stacks, event loop, and the processors it may use."""

import fcntl
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import setproctitle

if TYPE_CHECKING:
    import asyncio

#: The most characters of a title.
_MAX_TITLE = 1_000


def set_title(text: str) -> None:
    """Show this text in `ps` instead of the command line, which may hold a password. Costs about 1 µs."""
    text = text[:_MAX_TITLE]
    if not text.isprintable():
        # The publisher chooses a job's name and id: a title cannot hold a NUL, and must not drive a terminal.
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    setproctitle.setproctitle(text)


def nameless_file() -> int:
    """The descriptor of an empty file without a name, shared by this process and those forked from now on."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("palermo-stacks")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    # Each write goes to the present end of the file, even after another process has emptied it.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def flush() -> None:
    """Flush stdout and stderr: the process may be killed, or exit without Python's own flush, at any time."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # A job may have closed or replaced them, and the reader of a pipe may be gone.
            continue


def new_event_loop() -> "asyncio.AbstractEventLoop":
    """A new event loop: uvloop's if it is installed, which is faster, or else asyncio's."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def usable_processors(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The processors that this process may use: those it is bound to, or fewer if its container has less time."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(bound, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max" for no limit
        return bound
