"""The signals that a worker obeys: one table, which the code follows and the documentation is checked against.

Signals are for the parent. A terminal or a supervisor may send one to every process that it finds. The template and
the slots survive that: their handlers do nothing. They use handlers instead of SIG_IGN, because an ignored signal
stays ignored in the programs that a job starts, and a handler does not stay.
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
    """The actions that a signal or an order can ask of the worker."""

    FINISH = "finish"  #: take no more jobs, wait for the running ones, end
    STOP = "stop"  #: as FINISH, but jobs that still run after the shutdown timeout are killed and given back
    INTERRUPT = "interrupt"  #: as STOP the first time; the second time kills at once
    PAUSE = "pause"  #: take no more jobs until told to go on; running jobs go on
    RESUME = "resume"  #: take jobs again
    QUIET = "quiet"  #: take no more jobs until the worker ends or is told to wake; running jobs go on
    WAKE = "wake"  #: take jobs again, after PAUSE and QUIET alike: only an order asks for it, see orders.py
    KILL_JOBS = "kill jobs"  #: kill the running jobs, which fail, and go on
    DUMP = "dump"  #: write the stacks of the worker and of every running job into the log
    RENEW = "renew"  #: as FINISH, and then start anew in the same process, with fresh code
    ABANDON = "abandon"  #: kill the running jobs at once, give them back, end

    @property
    def ends(self) -> bool:
        """Whether the action ends the worker."""
        return self in (Action.FINISH, Action.STOP, Action.INTERRUPT, Action.ABANDON)


#: The actions that begin a shutdown, or hasten it.
ShutdownAction = Literal[Action.RENEW, Action.FINISH, Action.STOP, Action.INTERRUPT, Action.ABANDON]


class SignalRow(Struct, frozen=True):
    """One line of the table."""

    name: str
    action: Action
    #: What the worker does, as docs/ prints it.
    meaning: str

    @property
    def number(self) -> signal.Signals:
        """The signal itself."""
        return signal.Signals[f"SIG{self.name}"]


#: Seconds that running jobs get after TERM or INT, unless --shutdown-timeout says otherwise.
#: It is below the 30 s after which Kubernetes kills, and well below systemd's 90 s.
SHUTDOWN_TIMEOUT = 25.0

SIGNALS: tuple[SignalRow, ...] = (
    SignalRow("QUIT", Action.FINISH, "finish the running jobs, however long they take, and exit"),
    SignalRow(
        "TERM",
        Action.STOP,
        "finish the running jobs within the shutdown timeout; then raise JobTerminated in the rest, kill after"
        " the term timeout what still runs, give all of these back, exit",
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

#: The signals that `--resque-signals` gives the meaning that they have in Resque.
RESQUE_SIGNALS: tuple[SignalRow, ...] = tuple(
    SignalRow(name, Action.ABANDON, "kill the running jobs at once, give them back, exit") for name in ("TERM", "INT")
)

#: Seconds that a job gets to clean up after JobTerminated was raised in it, unless --term-timeout says otherwise.
#: With the shutdown timeout it is below 30.
TERM_TIMEOUT = 3.0

# The signals that the parent has sent to a running slot. Not TERM: systemd sends that to every process of a service
# at the very beginning of a stop, when jobs should go on for the shutdown timeout. Linux has real-time signals, and
# jobs hardly use these numbers. Elsewhere these are three signals that hardly any program uses.
_REALTIME = getattr(signal, "SIGRTMIN", None)
#: Raise JobTerminated in the job.
TERMINATE: int = _REALTIME + 9 if _REALTIME else signal.SIGVTALRM
#: Raise JobCancelled in the job.
CANCEL: int = _REALTIME + 10 if _REALTIME else signal.SIGXFSZ
#: Write the stacks of all threads, from C, whatever the job is doing.
DUMP: int = _REALTIME + 8 if _REALTIME else signal.SIGXCPU

#: The signals that the children survive. Not CHLD, PIPE or CONT, whose defaults they need, and not those of a crash.
SURVIVED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTSTP, signal.SIGTTIN),
)


def listen(loop: "asyncio.AbstractEventLoop", act: Callable[[SignalRow], object], *, resque: bool = False) -> None:
    """Have the loop call `act` for each signal of the table, from now on."""
    for row in (*SIGNALS, *(RESQUE_SIGNALS if resque else ())):
        loop.add_signal_handler(row.number, act, row)


def listen_without_loop(act: Callable[[SignalRow], object]) -> None:
    """Call `act` for each signal of the table, from now on, in the main thread of a process without an event loop."""
    rows = {int(row.number): row for row in SIGNALS}

    def handler(number: int, frame: FrameType | None) -> None:
        act(rows[number])

    for number in rows:
        signal.signal(number, handler)


def end_before_start() -> None:
    """Have TERM, INT and QUIT end this process, whose worker has not started; the other signals wait until it has.

    The process then ends with the exit code 0, as a worker without running jobs does, and one line on stderr.
    """
    ending = tuple(row.number for row in SIGNALS if row.action.ends)
    for number in ending:
        signal.signal(number, _end)
    blocked_signals.unblock(ending)


def _end(number: int, frame: FrameType | None) -> None:
    # No exception: it could be raised, and lost, in any import.
    with suppress(OSError):
        os.write(2, f"palermo: {signal.Signals(number).name[3:]} ended the worker before it had started\n".encode())
    os._exit(0)


def ignore_signals(loop: "asyncio.AbstractEventLoop") -> None:
    """Have this process, which is about to end, ignore further signals, so that it ends with its exit code.

    An event loop that is closed restores the defaults of the signals that it handles, so they are taken from it first.
    To take them restores the defaults too, so the signals are blocked meanwhile: the default of INT raises.
    """
    blocked_signals.block()
    for row in SIGNALS:
        loop.remove_signal_handler(row.number)
        signal.signal(row.number, signal.SIG_IGN)
    blocked_signals.unblock()


def survive() -> None:
    """Have this process, a child of the worker, survive signals that were meant for the parent.

    A process that a job forks (multiprocessing) gets the defaults back: Process.terminate() must end it.
    """
    for number in SURVIVED:
        signal.signal(number, _ignore)
    if not _registered:
        _registered.append(os.getpid())
        os.register_at_fork(
            before=_block_before_fork, after_in_parent=_unblock_after_fork, after_in_child=_restore_defaults
        )


#: Not empty if the functions below were registered, by this process or the one that it was forked from.
_registered: list[int] = []

#: By thread, its signal mask from before it began to fork.
_masks: dict[int, set[signal.Signals]] = {}


def _block_before_fork() -> None:
    # A signal that reaches the child before its handlers are removed would be lost in them.
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED)  # type: ignore[assignment]


def _unblock_after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(threading.get_ident(), set()))


def _restore_defaults() -> None:
    for number in SURVIVED:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    _unblock_after_fork()


def block_in_this_thread() -> None:
    """Block all signals in this thread, so that they reach the main thread: it runs the job, or the parent's loop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def kill(pid: int) -> None:
    """Kill a child and its process group, so that the processes which its job started end with it."""
    for send in (os.killpg, os.kill):
        with suppress(OSError):
            send(pid, signal.SIGKILL)


#: How a process ended that got SIGKILL.
KILLED = "was killed by SIGKILL: out of memory, or someone's kill -9"


def describe_status(status: int) -> str:
    """How a process ended, by its wait status: "was killed by SIGSEGV (segmentation fault)", "exited with status 3"."""
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
    """The handler of a signal that the process survives."""
