"""Jobs that take their worker with them."""

import os
import signal
import time
from pathlib import Path

import palermo


@palermo.job
def kills_worker(path, after):
    """Kill the parent of the template, as a machine does that runs out of memory."""
    with open(path, "a") as file:
        file.write("poison\n")
    time.sleep(after)
    worker = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(worker, signal.SIGKILL)
    time.sleep(60)


@palermo.job
def raises_late(path, gate):
    with open(path, "a") as file:
        file.write("raising\n")
    while not Path(gate).exists():
        time.sleep(0.01)
    raise ArithmeticError("late")
