"""Jobs as a user writes them. They write what they do into files of the worker's directory, a line each."""

import ctypes
import os
import time
from pathlib import Path

import palermo


def write(file, text):
    # One write, opened for appending: lines of several processes never mix, and none waits in a buffer to be lost.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def await_file(gate):
    while not Path(gate).exists():
        time.sleep(0.01)


@palermo.job
def note(text):
    write("notes", text)


@palermo.job(queue="mail")
class Send:
    def process(self, to, *, subject="hi"):
        if to == "nobody":
            raise LookupError(f"no address for {subject}")
        write("notes", f"{to}: {subject}")


@palermo.job
def hold(text, gate="gate"):
    """Say that it runs, wait until a file appears, say that it ends."""
    write("notes", f"{text} begins")
    await_file(gate)
    write("notes", f"{text} ends")


@palermo.job
def fail(text):
    raise ValueError(text)


@palermo.job(retries=3, backoff=600)
def fail_for_long(text):
    """Its first retry is not due before the test ends."""
    raise ValueError(text)


@palermo.job
def fail_unless(file):
    """Fail as long as a file is not there."""
    if not Path(file).exists():
        raise FileNotFoundError(file)
    write("notes", "mended")


@palermo.job
def stamp(number):
    """Say when it began, by the clock that all processes share."""
    write("stamps", f"{number} {time.clock_gettime_ns(time.CLOCK_MONOTONIC)}")


@palermo.job
def hold_the_gil(text, seconds):
    """Sleep in C code that never lets go of the interpreter."""
    write("notes", f"{text} begins")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    write("notes", f"{text} ends")


@palermo.job
def hold_and_fail(text, gate):
    """Say that it runs, wait until a file appears, and fail."""
    write("notes", f"{text} begins")
    await_file(gate)
    raise ValueError(text)
