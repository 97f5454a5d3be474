"""The signals that a process blocks while nobody can obey them: when a command starts, and when a worker starts again.

Law: it comes before all other imports, and imports only what the interpreter has in memory: `_signal` is `signal`
without its enums, whose making takes longer than all that comes before. A blocked signal waits in the kernel, also
across an exec, and comes when it is unblocked. A child that is forked meanwhile has the same signals blocked, so it
unblocks them.
"""

import _signal as signal  # type: ignore[import-not-found]

#: The signals that a worker obeys.
OBEYED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGCONT),
)


def block() -> None:
    """Block the signals that a worker obeys, in this thread and in those that it starts from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, OBEYED)


def are_blocked() -> bool:
    """Whether this process has blocked them: the command line that another program runs within itself has not."""
    return bool(signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def one_waits() -> bool:
    """Whether a blocked signal has come."""
    return bool(signal.sigpending())


def unblock(numbers: tuple[int, ...] = OBEYED) -> None:
    """Unblock them, or some of them. Those that came in the meantime come now: INT may raise KeyboardInterrupt here."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
