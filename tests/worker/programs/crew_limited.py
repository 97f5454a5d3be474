"""Jobs that count how many of them run at this moment, and say when they ran."""

import os
import time
from pathlib import Path

from crew import write

import palermo


def runs(pid):
    """Whether a process runs; one that was killed and waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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


@palermo.job(limit=1, limit_key=lambda path, account: account)
def one_of_each(path, account):
    write(path, f"{account} begins")
    time.sleep(0.2)
    write(path, f"{account} ends")


@palermo.job(rate="50/s")
def paced(path):
    write(path, str(time.time()))
