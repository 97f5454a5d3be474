"""Jobs that take their worker with them."""

import os
import signal
import time
from pathlib import Path

from crew import await_file, write

import palermo


@palermo.job
def kills_worker(path, after):
    """Kill the parent of the template, as a machine does that runs out of memory."""
    write(path, "poison")
    time.sleep(after)
    worker = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(worker, signal.SIGKILL)
    time.sleep(60)


@palermo.job
def raises_late(path, gate):
    write(path, "raising")
    await_file(gate)
    raise ArithmeticError("late")
