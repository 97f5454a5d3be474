"""Blocks signals while a process has no handlers for them: when a command starts, and when a worker restarts.

Law: import this module before all others. It imports only what the interpreter has already loaded: `_signal` is
`signal` without its enums, which are slow to build. A blocked signal stays pending in the kernel, even across an exec,
and is delivered once it is unblocked. A forked child inherits the blocked signals and must unblock them.
"""

import _signal as signal  # type: ignore[import-not-found]

#: The signals that a worker handles.
OBEYED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGCONT),
)


def block() -> None:
    """Block the worker's signals in this thread and in threads that it starts later."""
    signal.pthread_sigmask(signal.SIG_BLOCK, OBEYED)


def are_blocked() -> bool:
    """Whether this process has blocked the worker's signals. False if a program imports and runs the command line."""
    return bool(signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def one_waits() -> bool:
    """Whether a blocked signal is pending."""
    return bool(signal.sigpending())


def unblock(numbers: tuple[int, ...] = OBEYED) -> None:
    """Unblock these signals. Pending ones are delivered now, so INT may raise KeyboardInterrupt here."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
