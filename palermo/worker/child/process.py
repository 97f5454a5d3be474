"""Functions by which a child process of the worker ties itself to its parent, and leaves its terminal, and ends."""

import atexit
import contextlib
import os
import sys
from typing import NoReturn

from palermo import tracing
from palermo.worker.process import flush

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_SS_DISABLE = 2


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the process `parent`, which forked it, ends in any way.

    Linux only; elsewhere the end of file on the socket pair ends an idle child, and a
    busy one when its job is done.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # The parent may have died before this call.
    if os.getppid() != parent:
        os._exit(1)


def use_ordinary_signal_stack() -> None:
    """Have signal handlers run on the ordinary stack.

    If faulthandler has made an alternate stack, Python's handlers run there. It has room for one frame and 8 kB. A
    frame takes 3 to 11 kB, depending on the processor, and each of several signals at once needs a frame. If the stack
    is too small for them, the kernel ends the process.
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
    """Forget what was given to atexit before the fork: it belongs to the process that forked this one."""
    atexit._clear()


def end_by_atexit() -> NoReturn:
    """End this process, after the functions that its jobs gave to atexit. An error in one of them is printed."""
    atexit._run_exitfuncs()
    exit_now(0)


def exit_now(status: int) -> NoReturn:
    """End this process now, after flushing stdout and stderr and sending the tracing spans."""
    flush()
    tracing.flush()
    os._exit(status)
