"""Jobs that take too long, too much, or their leave."""

import logging
import os
import subprocess
import sys
import threading
import time

from crew import hold, note, write  # noqa: F401

import palermo
from palermo.errors import JobTerminated, JobTimeout


@palermo.job
def tidies(path):
    """Wait for the end, and say which one it was."""
    try:
        write(path, f"{os.getpid()} waits")
        time.sleep(60)
    except (JobTimeout, JobTerminated) as error:
        write(path, f"tidied after {type(error).__name__}")
        raise


@palermo.job(timeout=0.2)
def short(path):
    """Its own limit is in its declaration."""
    write(path, "short begins")
    time.sleep(60)


@palermo.job
def gives_up(path, error):
    """Whatever it was told, it raises something else."""
    try:
        write(path, "waits")
        time.sleep(60)
    except JobTerminated:
        if error == "exit":
            os._exit(3)
        raise KeyError(error) from None


@palermo.job
def finishes(path):
    try:
        write(path, "waits")
        time.sleep(60)
    except JobTerminated:
        write(path, "finished anyway")


@palermo.job
def stubborn(path):
    said = f"{os.getpid()} waits"
    while True:
        try:
            if said:
                write(path, said)
            said = ""
            time.sleep(60)
        except Exception:
            write(path, "not impressed")


@palermo.job
def hogs_the_gil(path):
    """In C, where no Python handler runs; the marker is for a stack dump."""
    write(path, f"{os.getpid()} waits")
    return in_c()


@palermo.job(rerun_after=3.0)
def hangs_once(path):
    """The first run hangs in C; a later one says whether that is still there."""
    if os.path.exists(path):
        with open(path) as file:
            first = file.readline().split()[1]
        write(path, f"again {os.path.exists(f'/proc/{first}')}")
        return
    write(path, f"hangs {os.getpid()}")
    in_c()


@palermo.job(rerun_after=1.5)
def hangs_always(path):
    write(path, f"hangs {palermo.current_job().attempt}")
    in_c()


def in_c():
    return sum(range(10**12))


@palermo.job
def eats(path, megabytes, seconds):
    write(path, f"{os.getpid()} eats")
    keep.append(b"x" * (megabytes * 1_000_000))
    time.sleep(seconds)


keep = []


@palermo.job
def tells_pid(path):
    write(path, str(os.getpid()))


@palermo.job
def leaves_an_orphan(path, gate):
    """A grandchild whose parent is gone, and which ends when a file appears."""
    program = (
        "import os, sys, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); os.close(1); os.close(2)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    )
    command = [sys.executable, "-c", program, gate]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    write(path, done.stdout.strip())


@palermo.hook
def on_failure(definition, error, *args, **kwargs):
    if args:
        write(args[0], f"on_failure {type(error).__name__}")


@palermo.failure_backend
def told(report):
    logging.getLogger("palermo.worker").info("told of %s", report.failure.exception_class)


@palermo.job
def leaves_something(path, text):
    """Give a function to atexit, as a library does that the job uses."""
    import atexit

    atexit.register(write, path, f"{text} left by {os.getpid()}")
    write(path, f"{os.getpid()} ran")


@palermo.job
def tidies_slowly(path, gate):
    """Clean up until the gate opens."""
    try:
        write(path, f"{os.getpid()} waits")
        time.sleep(60)
    except JobTerminated:
        write(path, "begins to tidy")
        while not os.path.exists(gate):
            time.sleep(0.02)
        write(path, "has tidied")
        raise


@palermo.job
def leaves_a_hang() -> None:
    """Give a function to atexit that never returns."""
    import atexit

    atexit.register(threading.Event().wait)
