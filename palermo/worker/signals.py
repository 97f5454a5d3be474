"""Which signal does what to a worker: one table, which the code obeys and the documentation is checked against.

Signals are for the parent. The template and the slots survive a stray one, which a
terminal or a supervisor may send to every process it finds: their handlers do nothing.
They are handlers and not SIG_IGN, because what is ignored stays ignored in the programs
that a job starts, and a handler does not.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING

from palermo.core.values import dataclass

if TYPE_CHECKING:
    import asyncio


class Action(Enum):
    """What the worker loop knows how to do when told."""

    FINISH = "finish"  #: take no more jobs, wait for the running ones, leave
    STOP = "stop"  #: the same, but what still runs after the shutdown timeout is killed and given back
    INTERRUPT = "interrupt"  #: as STOP the first time; the second time kills at once
    PAUSE = "pause"  #: take no more jobs until told to go on; running jobs go on
    RESUME = "resume"  #: take jobs again
    QUIET = "quiet"  #: take no more jobs until the worker ends or is told to wake; running jobs go on
    WAKE = "wake"  #: take jobs again, after PAUSE and QUIET alike: no signal says it, see orders.py
    KILL_JOBS = "kill jobs"  #: kill the running jobs, which fail, and go on
    DUMP = "dump"  #: write what the worker and every running job are doing into the log
    RENEW = "renew"  #: as FINISH, and then begin anew in the same process, with fresh code
    ABANDON = "abandon"  #: kill the running jobs at once, give them back, leave

    @property
    def ends(self) -> bool:
        """Whether the worker ends by it."""
        return self in (Action.FINISH, Action.STOP, Action.INTERRUPT, Action.ABANDON)


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One line of the table."""

    name: str
    action: Action
    #: For people, in docs/.
    meaning: str

    @property
    def number(self) -> signal.Signals:
        """The signal itself."""
        return signal.Signals[f"SIG{self.name}"]


#: Seconds that running jobs get after TERM or INT, unless --shutdown-timeout says otherwise.
#: Below the 30 s after which Kubernetes kills and well below systemd's 90 s.
SHUTDOWN_TIMEOUT = 25.0

SIGNALS: tuple[SignalRow, ...] = (
    SignalRow("QUIT", Action.FINISH, "finish the running jobs, however long they take, and exit"),
    SignalRow(
        "TERM",
        Action.STOP,
        "finish the running jobs within the shutdown timeout; then raise JobTerminated in the rest, kill after"
        " 3 seconds what still runs, give all of these back, exit",
    ),
    SignalRow("INT", Action.INTERRUPT, "as TERM; a second INT kills the running jobs at once and gives them back"),
    SignalRow("USR2", Action.PAUSE, "take no more jobs; the running ones go on"),
    SignalRow("CONT", Action.RESUME, "take jobs again after USR2"),
    SignalRow("TSTP", Action.QUIET, "take no more jobs until the worker ends, CONT or not; the running ones go on"),
    SignalRow(
        "USR1",
        Action.KILL_JOBS,
        "kill the processes of the running jobs, which fail as JobCrashed; the worker goes on with the next",
    ),
    SignalRow(
        "TTIN",
        Action.DUMP,
        "write the stacks of the worker's parent and of every running job into the log, without stopping them",
    ),
    SignalRow(
        "HUP",
        Action.RENEW,
        "finish the running jobs, however long they take, and begin anew: same pid, same command, fresh code",
    ),
)

#: What `--resque-signals` changes: the meanings that these have in Resque.
RESQUE_SIGNALS: tuple[SignalRow, ...] = tuple(
    SignalRow(name, Action.ABANDON, "kill the running jobs at once, give them back, exit") for name in ("TERM", "INT")
)

#: Seconds that a job gets to clean up once JobTerminated was raised in it. With the shutdown timeout it is below 30.
TERM_GRACE = 3.0

# What the parent tells a running slot. Not TERM itself: systemd sends that to every process of a service
# at the very beginning of a stop, when jobs should go on for the shutdown timeout. Real-time signals are Linux's,
# and nobody else's jobs use these; elsewhere three that hardly anybody does.
_REALTIME = getattr(signal, "SIGRTMIN", None)
#: Raise JobTerminated in the job.
TERMINATE: int = _REALTIME + 9 if _REALTIME else signal.SIGVTALRM
#: Raise JobCancelled in the job.
CANCEL: int = _REALTIME + 10 if _REALTIME else signal.SIGXFSZ
#: Write the stacks of all threads, from C, whatever the job is doing.
DUMP: int = _REALTIME + 8 if _REALTIME else signal.SIGXCPU

#: What the children survive. Not CHLD, PIPE or CONT, whose defaults are what they need, and not what reports a crash.
SURVIVED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTSTP, signal.SIGTTIN),
)


def listen(loop: "asyncio.AbstractEventLoop", act: Callable[[SignalRow], object], *, resque: bool = False) -> None:
    """Have the loop call `act` for each signal of the table, from now on."""
    for row in (*SIGNALS, *(RESQUE_SIGNALS if resque else ())):
        loop.add_signal_handler(row.number, act, row)


def ignore_renewal() -> None:
    """Have a HUP that comes while this process begins anew change nothing: it is doing that already."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def survive() -> None:
    """Let this process, a child of the worker, live through signals that were meant for the parent.

    What a job forks (multiprocessing) gets the defaults back: Process.terminate() must end it.
    """
    for number in SURVIVED:
        signal.signal(number, _nothing)
    if not _registered:
        _registered.append(os.getpid())
        os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_be_mortal)


#: Whether the functions below were registered, by this process or the one it was forked from.
_registered: list[int] = []

#: By thread, the signals that it had blocked before it began to fork.
_masks: dict[int, set[signal.Signals]] = {}


def _hold() -> None:
    # A signal that reaches the child before its handlers are gone would find them, and be lost.
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED)  # type: ignore[assignment]


def _go_on() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(threading.get_ident(), set()))


def _be_mortal() -> None:
    for number in SURVIVED:
        if signal.getsignal(number) is _nothing:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    _go_on()


def leave_to_main_thread() -> None:
    """Have no signal delivered to this thread: one that interrupts a job must find the thread that runs it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def kill(pid: int) -> None:
    """Kill a child, and its group: what its job started ends with it."""
    for send in (os.killpg, os.kill):
        with suppress(OSError):
            send(pid, signal.SIGKILL)


def describe_status(status: int) -> str:
    """How a process ended, by its wait status: "was killed by SIGSEGV (segmentation fault)", "exited with status 3"."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was killed by signal {-status}"
    if number is signal.SIGKILL:
        return "was killed by SIGKILL: out of memory, or someone's kill -9"
    text = signal.strsignal(number)
    return f"was killed by {number.name}" + (f" ({text.lower()})" if text else "")


def _nothing(number: int, frame: FrameType | None) -> None:
    """Survive."""
