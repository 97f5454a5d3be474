"""Which signal does what to a worker: one table, which the code obeys and the documentation is checked against.

Signals are for the parent. The template and the slots survive a stray one, which a
terminal or a supervisor may send to every process it finds: their handlers do nothing.
They are handlers and not SIG_IGN, because what is ignored stays ignored in the programs
that a job starts, and a handler does not.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import FrameType


class Action(Enum):
    """What the worker loop knows how to do when told."""

    FINISH = "finish"  #: take no more jobs, wait for the running ones, leave
    STOP = "stop"  #: the same, but what still runs after the shutdown timeout is killed and given back
    INTERRUPT = "interrupt"  #: as STOP the first time; the second time kills at once
    PAUSE = "pause"  #: take no more jobs until told to go on; running jobs go on
    RESUME = "resume"  #: take jobs again

    @property
    def ends(self) -> bool:
        """Whether the worker ends by it."""
        return self in (Action.FINISH, Action.STOP, Action.INTERRUPT)


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
        "TERM", Action.STOP, "finish the running jobs within the shutdown timeout; kill the rest, give them back, exit"
    ),
    SignalRow("INT", Action.INTERRUPT, "as TERM; a second INT kills the running jobs at once and gives them back"),
    SignalRow("USR2", Action.PAUSE, "take no more jobs; the running ones go on"),
    SignalRow("CONT", Action.RESUME, "take jobs again after USR2"),
)

#: What the children survive. Not CHLD, PIPE or CONT, whose defaults are what they need, and not what reports a crash.
SURVIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def listen(loop: asyncio.AbstractEventLoop, act: Callable[[SignalRow], object]) -> None:
    """Have the loop call `act` for each signal of the table, from now on."""
    for row in SIGNALS:
        loop.add_signal_handler(row.number, act, row)


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
