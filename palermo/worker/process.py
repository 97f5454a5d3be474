"""Changes that a worker's processes make to themselves: title, standard streams, signals, exit."""

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
    """Set the text that `ps` shows, since the command line may contain a password. Takes about 1 µs."""
    text = text[:_MAX_TITLE]
    if not text.isprintable():
        # Publishers choose jobs' names and ids. A title can't contain a NUL, and must not control a terminal.
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    setproctitle.setproctitle(text)


def nameless_file() -> int:
    """Return the descriptor of an empty file without a name, shared with processes forked later."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("palermo-stacks")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    # Append each write at the end of the file, even if another process has truncated it.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def flush() -> None:
    """Flush stdout and stderr, because the process may be killed or exit without Python's own flush."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # a job may have closed or replaced them, and a pipe's reader may be gone
            continue


def usable_processors(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of processors that this process may use, taking affinity and a container's `quota` into
    account.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(bound, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max" for no limit
        return bound


#: Maximum number of titles for single jobs that a slot shows per second.
_BURST = 20


class SlotTitle:
    """A slot's title: "idle", or its running job.

    The title is set when a job starts, because a slot can't watch the clock while a job is running. For very short jobs
    that would take most of the time. After 20 titles in one second, the title therefore only says that there are many
    jobs, until the next second.
    """

    def __init__(self, slot: int, *, show: Callable[[str], None] = set_title) -> None:
        self.slot = slot
        self._prefix = f"palermo slot {slot}: "
        self._show = show
        self._second = 0
        #: Number of titles left in that second; negative once the title says that there are many jobs.
        self._left = _BURST
        #: Whether the title doesn't say idle, and so is outdated once no job is running.
        self.stale = True

    def working(self, job: str, id: str, now: float) -> None:
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
        """Show that no job is running."""
        self.stale = False
        self._left = max(self._left, 0)
        self._show(f"{self._prefix}idle")


class Title:
    """A title that depends on the jobs, and is updated soon after each change."""

    def __init__(
        self,
        text: Callable[[], str],
        call_soon: Callable[[Callable[[], None]], object],
        *,
        show: Callable[[str], None] = set_title,
    ) -> None:
        """`text` returns the current title. `call_soon` calls a function later, within a tenth of a second."""
        self._text = text
        self._call_soon = call_soon
        self._show = show
        #: Whether an update is scheduled.
        self._queued = False

    def update(self) -> None:
        """Schedule an update. Thread-safe and cheap, because it is called for every job."""
        if not self._queued:
            self._queued = True
            self._call_soon(self._update)

    def _update(self) -> None:
        self._queued = False
        self._show(self._text())


def busy_slots(busy: int, slots: int) -> str:
    """Describe how many slots are busy."""
    return f"{busy} of {count(slots, 'slot')} busy"


def parent_title(*, state: str, queues: str, busy: int, slots: int) -> str:
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
    """Let the kernel kill this process when `parent`, which forked it, ends for any reason.

    Linux only. Elsewhere, an idle child ends immediately when the socket pair is closed, and a busy one after its job.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # The parent may have died before this call.
    if os.getppid() != parent:
        os._exit(1)


def use_ordinary_signal_stack() -> None:
    """Run signal handlers on the ordinary stack.

    If faulthandler has created an alternate stack, Python's handlers run there. It has room for one frame plus 8 kB. A
    frame takes 3 to 11 kB, depending on the processor, and each of several simultaneous signals needs one. If the stack
    is too small, the kernel kills the process.
    """
    if sys.platform == "linux":
        import ctypes

        class Stack(ctypes.Structure):
            _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

        ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(Stack(None, _SS_DISABLE, 0)), None)


def own_group() -> None:
    """Move this process into its own group, so that the terminal sends Ctrl-C only to the parent."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def close_stdin() -> None:
    """Redirect standard input to /dev/null, because jobs must not read from the terminal."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def forget_atexit() -> None:
    """Remove atexit functions registered before the fork, which belong to the parent process."""
    atexit._clear()


def end_by_atexit(status: int = 0) -> NoReturn:
    """Run the atexit functions of this process, then exit. Errors in them are printed."""
    atexit._run_exitfuncs()
    exit_now(status)


def exit_now(status: int) -> NoReturn:
    """Exit immediately, after flushing stdout and stderr and sending the tracing spans."""
    flush()
    tracing.flush()
    os._exit(status)
