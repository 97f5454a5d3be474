"""Jobs for the worker's tests. What they do they write into a file, a line each, for a test to see."""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import palermo


def write(path, text):
    with open(path, "a") as file:
        file.write(text + "\n")


def await_file(gate):
    while not Path(gate).exists():
        time.sleep(0.01)


@palermo.job
def note(path, text):
    write(path, text)


@palermo.job
def environ(path, name):
    write(path, str(os.environ.get(name)))


@palermo.job
def stamp(path, text):
    write(path, f"{text} {time.time()}")


@palermo.job
def nothing():
    return None


@palermo.job
def raises(text):
    raise ValueError(text)


@palermo.job
def exits(status):
    os._exit(status)


@palermo.job
def segfaults():
    ctypes.string_at(0)


@palermo.job
def segfaults_unseen():
    """Crash while the template stands still, which goes on a second and a half later."""
    template = os.getppid()
    subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {template}"], start_new_session=True)
    os.kill(template, signal.SIGSTOP)
    ctypes.string_at(0)


@palermo.job
def killed(name):
    os.kill(os.getpid(), signal.Signals[name])


@palermo.job
def hangs_up():
    """Close the pair with the parent, whatever its number."""
    os.closerange(3, 256)
    time.sleep(60)


@palermo.job
def babbles():
    """Write what is no frame into every socket that there is."""
    for descriptor in range(3, 256):
        try:
            socket.socket(fileno=os.dup(descriptor)).sendall(b"\xff" * 64)
        except OSError:
            continue
    time.sleep(60)


@palermo.job
def kills_template():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@palermo.job
def hold(path, gate, text="held"):
    """Say that it runs, wait until a file appears, say that it has."""
    write(path, f"{text} begins")
    await_file(gate)
    write(path, f"{text} ends")


@palermo.job
async def waits(path):
    await asyncio.sleep(0.001)
    write(path, "waited")


@palermo.job
def measures(path, text):
    write(path, str(len(text)))


@palermo.job
def tells_pids(path):
    write(path, f"{os.getppid()} {os.getpid()}")


@palermo.job
def tells_current(path):
    current = palermo.current_job()
    write(path, f"{current.id} {current.queue} {current.job} {current.attempt} {current.worker}")


@palermo.job
def enqueues(path, text):
    note.enqueue(path, text)


@palermo.job
def reads_stdin(path):
    write(path, repr(sys.stdin.read()))


@palermo.job
def prints(text):
    print(text)


@palermo.job
def starts_a_program(path):
    """A program that a job starts obeys TERM."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program.terminate()
    write(path, str(program.wait()))


@palermo.job
def starts_a_process(path, method):
    """So does a process of multiprocessing."""
    process = get_context(method).Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    write(path, str(process.exitcode))


@palermo.job(queue="low")
def low(path, text):
    write(path, text)


@palermo.job
def logs(text):
    """Log a line of its own, and one from a library's logger, two levels down."""
    logging.getLogger("shop").warning("%s", text, extra={"customer": 7})
    logging.getLogger("some.library").info("as libraries do")


@palermo.job
def import_rows(path, count, pause, fail_at=0):
    for row in palermo.resume(lambda last: range(last + 1 if last else 1, count + 1), key=int, total=count):
        if row == fail_at and palermo.current_job().attempt == 1:
            raise ValueError(row)
        write(path, str(row))
        time.sleep(pause)


@palermo.job
async def import_rows_async(path, count, pause):
    async def rows(last):
        for row in range(last or 0, count):
            yield row + 1

    async for row in palermo.resume(rows, key=int):
        write(path, str(row))
        await asyncio.sleep(pause)


@palermo.workflow
def waits_for_nobody(flow):
    flow.signal("never")
