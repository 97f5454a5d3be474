"""The signals of a worker, in a table read by the code and the documentation.

Signals are meant for the parent, but a terminal or supervisor may send one to every process in the group. The template
and the slots survive it because their handlers do nothing. They don't use SIG_IGN, because programs started by a job
would inherit it, unlike a handler.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from palermo import blocked_signals

if TYPE_CHECKING:
    import asyncio


class Action(Enum):
    """The effect of a signal or an order on the worker."""

    FINISH = "finish"  #: take no more jobs, wait for the running ones, exit
    STOP = "stop"  #: like FINISH, but kill and release jobs that are still running after the shutdown timeout
    INTERRUPT = "interrupt"  #: like STOP the first time; the second time, kill immediately
    PAUSE = "pause"  #: take no more jobs until RESUME; running jobs continue
    RESUME = "resume"  #: take jobs again
    QUIET = "quiet"  #: take no more jobs until the worker exits or WAKE; running jobs continue
    WAKE = "wake"  #: take jobs again, after PAUSE or QUIET; only by an order, see orders.py
    KILL_JOBS = "kill jobs"  #: kill the running jobs, which fail, and continue
    DUMP = "dump"  #: log the stacks of the worker and of every running job
    RENEW = "renew"  #: like FINISH, then restart in the same process with fresh code
    ABANDON = "abandon"  #: kill and release the running jobs immediately, and exit

    @property
    def ends(self) -> bool:
        """Whether the worker exits."""
        return self in (Action.FINISH, Action.STOP, Action.INTERRUPT, Action.ABANDON)


#: The actions that start or speed up a shutdown.
ShutdownAction = Literal[Action.RENEW, Action.FINISH, Action.STOP, Action.INTERRUPT, Action.ABANDON]


class SignalRow(Struct, frozen=True):
    name: str
    action: Action
    #: The effect on the worker, for the documentation.
    meaning: str

    @property
    def number(self) -> signal.Signals:
        return signal.Signals[f"SIG{self.name}"]


#: Default of --shutdown-timeout: seconds for running jobs after TERM or INT. Less than the 30 s until Kubernetes kills,
#: and much less than systemd's 90 s.
SHUTDOWN_TIMEOUT = 25.0

SIGNALS: tuple[SignalRow, ...] = (
    SignalRow("QUIT", Action.FINISH, "Finish the running jobs, however long they take, and exit"),
    SignalRow(
        "TERM",
        Action.STOP,
        "Finish the running jobs within the shutdown timeout. Then raise JobTerminated in the remaining jobs, kill"
        " jobs that are still running after the term timeout, release all unfinished jobs, and exit",
    ),
    SignalRow("INT", Action.INTERRUPT, "Like TERM. A second INT kills the running jobs immediately and releases them"),
    SignalRow("USR2", Action.PAUSE, "Take no more jobs. Running jobs continue"),
    SignalRow("CONT", Action.RESUME, "Take jobs again after USR2"),
    SignalRow("TSTP", Action.QUIET, "Take no more jobs until the worker exits, even after CONT. Running jobs continue"),
    SignalRow(
        "USR1",
        Action.KILL_JOBS,
        "Kill the processes of the running jobs, which fail with JobCrashed. The worker continues with the next jobs",
    ),
    SignalRow(
        "TTIN",
        Action.DUMP,
        "Log the stacks of the worker's parent and of every running job, without stopping them",
    ),
    SignalRow(
        "HUP",
        Action.RENEW,
        "Finish the running jobs, however long they take, and restart with the same pid and command and fresh code",
    ),
)

#: The signals with a different meaning under `--resque-signals`.
RESQUE_SIGNALS: tuple[SignalRow, ...] = tuple(
    SignalRow(name, Action.ABANDON, "Kill the running jobs immediately, release them, and exit")
    for name in ("TERM", "INT")
)

#: Default of --term-timeout: seconds for a job to clean up after JobTerminated. Together with the shutdown timeout,
#: less than 30 s.
TERM_TIMEOUT = 3.0

# The signals that the parent sends to a running slot. They don't include TERM, because systemd sends TERM to every
# process of a service when it starts to stop, and jobs should continue until the shutdown timeout. On Linux they are
# real-time signals, which jobs rarely use, and elsewhere three signals that few programs use.
_REALTIME = getattr(signal, "SIGRTMIN", None)
#: Raises JobTerminated in the job.
TERMINATE: int = _REALTIME + 9 if _REALTIME else signal.SIGVTALRM
#: Raises JobCancelled in the job.
CANCEL: int = _REALTIME + 10 if _REALTIME else signal.SIGXFSZ
#: Writes the stacks of all threads, from C, whatever the job is doing.
DUMP: int = _REALTIME + 8 if _REALTIME else signal.SIGXCPU

#: The signals that the children survive. CHLD, PIPE, CONT and the signals of a crash must keep their defaults.
SURVIVED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTSTP, signal.SIGTTIN),
)


def listen(loop: "asyncio.AbstractEventLoop", act: Callable[[SignalRow], object], *, resque: bool = False) -> None:
    """Call `act` in the event loop for each signal of the table."""
    for row in (*SIGNALS, *(RESQUE_SIGNALS if resque else ())):
        loop.add_signal_handler(row.number, act, row)


def listen_without_loop(act: Callable[[SignalRow], object]) -> None:
    """Call `act` in the main thread for each signal of the table, in a process without an event loop."""
    rows = {int(row.number): row for row in SIGNALS}

    def handler(number: int, frame: FrameType | None) -> None:
        act(rows[number])

    for number in rows:
        signal.signal(number, handler)


def end_before_start() -> None:
    """Let TERM, INT and QUIT end this process before its worker has started. Other signals remain pending until then.

    The process then exits with code 0, like a worker without running jobs, and prints a line on stderr.
    """
    ending = tuple(row.number for row in SIGNALS if row.action.ends)
    for number in ending:
        signal.signal(number, _end)
    blocked_signals.unblock(ending)


def _end(number: int, frame: FrameType | None) -> None:
    # Not with an exception, which could be lost in an import.
    with suppress(OSError):
        os.write(2, f"palermo: {signal.Signals(number).name[3:]} ended the worker before it had started\n".encode())
    os._exit(0)


def ignore_signals(loop: "asyncio.AbstractEventLoop") -> None:
    """Ignore further signals in this process, which is about to exit with its own exit code.

    Handlers are removed from the event loop first, because closing it would restore the default actions. Since removing
    them does so too, the signals are blocked in the meantime.
    """
    blocked_signals.block()
    for row in SIGNALS:
        loop.remove_signal_handler(row.number)
        signal.signal(row.number, signal.SIG_IGN)
    blocked_signals.unblock()


def survive() -> None:
    """Make this child process survive signals that are meant for the parent.

    A process forked by a job (multiprocessing) gets the default actions back, so that Process.terminate() works.
    """
    for number in SURVIVED:
        signal.signal(number, _ignore)
    if not _registered:
        _registered.append(os.getpid())
        os.register_at_fork(
            before=_block_before_fork, after_in_parent=_unblock_after_fork, after_in_child=_restore_defaults
        )


#: Not empty if the functions below were registered, in this process or the one from which it was forked.
_registered: list[int] = []

#: The signal mask of each thread before its fork.
_masks: dict[int, set[signal.Signals]] = {}


def _block_before_fork() -> None:
    # A signal that reaches the child before its handlers are removed would be lost.
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED)  # type: ignore[assignment]


def _unblock_after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(threading.get_ident(), set()))


def _restore_defaults() -> None:
    for number in SURVIVED:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    _unblock_after_fork()


def block_in_this_thread() -> None:
    """Block all signals in this thread, so that they reach the main thread, which runs the job or the parent's loop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def kill(pid: int) -> None:
    """Kill a child and its process group, including processes started by its job."""
    for send in (os.killpg, os.kill):
        with suppress(OSError):
            send(pid, signal.SIGKILL)


#: Describes the end of a process that got SIGKILL.
KILLED = "was killed by SIGKILL: out of memory, or kill -9"


def describe_status(status: int) -> str:
    """Describe a wait status: "was killed by SIGSEGV (segmentation fault)", "exited with status 3"."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was killed by signal {-status}"
    if number is signal.SIGKILL:
        return KILLED
    text = signal.strsignal(number)
    return f"was killed by {number.name}" + (f" ({text.lower()})" if text else "")


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handler that ignores a signal."""
