"""Changes that a worker process makes to itself: title, standard streams, link to its parent, exit.

Setting a title, as `ps` shows it, is cheap enough for a no-op job.
"""

import atexit
import contextlib
import fcntl
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import setproctitle

from palermo import tracing
from palermo.core.text import count

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_SS_DISABLE = 2

#: Maximum number of characters of a title.
_MAX_TITLE = 1_000


def set_title(text: str) -> None:
    """Show this text in `ps` instead of the command line, which may contain a password. Costs about 1 µs."""
    text = text[:_MAX_TITLE]
    if not text.isprintable():
        # The publisher chooses a job's name and id. A title cannot contain a NUL, and must not control a terminal.
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
    # Each write goes to the current end of the file, even after another process has truncated it.
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


def usable_processors(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Number of processors that this process may use: those it is bound to, or fewer if its container has a quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(bound, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max" for no limit
        return bound


#: Number of single-job titles that a slot may show per second.
_BURST = 20


class SlotTitle:
    """A slot's title: "idle", or the job it runs.

    A slot cannot check the clock while its job runs, so it sets the title when a job starts. With very short jobs
    that would take most of the time. So after 20 titles in one second, the title says only that there are many jobs,
    until the next second.
    """

    def __init__(self, slot: int, *, show: Callable[[str], None] = set_title) -> None:
        self.slot = slot
        self._prefix = f"palermo slot {slot}: "
        self._show = show
        self._second = 0
        #: Number of single-job titles left in that second; negative once the title says that there are many.
        self._left = _BURST
        #: Whether the title does not say idle, so that it is outdated once no job runs.
        self.stale = True

    def working(self, job: str, id: str, now: float) -> None:
        """Show that a job begins."""
        second = int(now)
        if second != self._second:
            self._second, self._left = second, _BURST
        elif self._left < 0:
            return
        self._left -= 1
        if self._left >= 0:
            since = time.strftime("%H:%M:%S", time.localtime(second))
            self._show(f"{self._prefix}{job or 'a job without a name'} {id} since {since}")
        else:
            self._show(f"{self._prefix}many short jobs")
        self.stale = True

    def idle(self) -> None:
        """Show that there is no job."""
        self.stale = False
        self._left = max(self._left, 0)
        self._show(f"{self._prefix}idle")


class Title:
    """A title that changes with each job, and is shown soon after a change."""

    def __init__(
        self,
        text: Callable[[], str],
        call_soon: Callable[[Callable[[], None]], object],
        *,
        show: Callable[[str], None] = set_title,
    ) -> None:
        """`text` returns the current title; `call_soon` calls a function within a tenth of a second, not
        immediately."""
        self._text = text
        self._call_soon = call_soon
        self._show = show
        #: Whether an update is scheduled.
        self._queued = False

    def update(self) -> None:
        """Schedule an update. Cheap, because it is called for every job; any thread may call it."""
        if not self._queued:
            self._queued = True
            self._call_soon(self._update)

    def _update(self) -> None:
        self._queued = False
        self._show(self._text())


def busy_slots(busy: int, slots: int) -> str:
    """How many slots are busy, in words."""
    return f"{busy} of {count(slots, 'slot')} busy"


def parent_title(*, state: str, queues: str, busy: int, slots: int) -> str:
    """The title of the parent process, by the worker's state."""
    match state:
        case "working":
            return f"palermo worker: {busy_slots(busy, slots)}"
        case "idle":
            return f"palermo worker: waiting for {queues}"
        case "paused" | "quiet" | "stopping" if busy:
            return f"palermo worker: {state}, {busy_slots(busy, slots)}"
        case _:
            return f"palermo worker: {state}"


def die_with(parent: int) -> None:
    """Make the kernel kill this process when the process `parent`, which forked it, ends in any way.

    Linux only. Elsewhere the end of file on the socket pair ends an idle child immediately, and a busy one after its
    job.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # The parent may have died before this call.
    if os.getppid() != parent:
        os._exit(1)


def use_ordinary_signal_stack() -> None:
    """Run signal handlers on the ordinary stack.

    If faulthandler has created an alternate stack, Python's handlers run there. It has room for one frame and 8 kB.
    A frame takes 3 to 11 kB, depending on the processor, and each of several simultaneous signals needs a frame. If
    the stack is too small for them, the kernel ends the process.
    """
    if sys.platform == "linux":
        import ctypes

        class Stack(ctypes.Structure):
            _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

        ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(Stack(None, _SS_DISABLE, 0)), None)


def own_group() -> None:
    """Move this process out of the terminal's foreground group, so that Ctrl-C reaches only the parent."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def close_stdin() -> None:
    """Make standard input /dev/null: the terminal belongs to its user and not to jobs."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def forget_atexit() -> None:
    """Drop the atexit functions from before the fork: they belong to the process that forked this one."""
    atexit._clear()


def end_by_atexit() -> NoReturn:
    """Run the atexit functions of this process's jobs, then end it. An error in one of them is printed."""
    atexit._run_exitfuncs()
    exit_now(0)


def exit_now(status: int) -> NoReturn:
    """End this process now, after flushing stdout and stderr and sending the tracing spans."""
    flush()
    tracing.flush()
    os._exit(status)
