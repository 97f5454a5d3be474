"""Jobs that count how many of them run at this moment, and say when they ran."""

import os
import time
from pathlib import Path

from crew import await_file, write

import palermo


def runs(pid, ancestors=2):
    """Whether a process runs, and so do template and worker: they die one after the other, and are buried later."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" and (not ancestors or (parent != "1" and runs(parent, ancestors - 1)))


@palermo.job(limit=3)
def probed(path, folder, seconds, number):
    """Write how many of these run now, those of processes that were killed left out, and which this is."""
    mine = Path(folder) / str(os.getpid())
    mine.touch()
    time.sleep(seconds / 2)
    running = [one for one in Path(folder).iterdir() if runs(one.name)]
    time.sleep(seconds / 2)
    mine.unlink()
    write(path, f"{len(running)} {number}")


@palermo.job(limit=1, limit_key=lambda path, account, gate: account)
def one_of_each(path, account, gate):
    write(path, f"{account} begins")
    await_file(gate)
    write(path, f"{account} ends")


@palermo.job(rate="50/s")
def paced(path):
    write(path, str(time.time()))
