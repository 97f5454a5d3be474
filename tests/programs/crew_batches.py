import json
import signal

from crew import write

import palermo


@palermo.job(batch=10, batch_wait=0.5, retries=1, backoff=0)
def store(batch):
    """Write down what it was called with; one row is bad."""
    write(batch[0][0], json.dumps([row for _, row in batch]))
    for index, (_, row) in enumerate(batch):
        if row == "bad":
            batch.fail(index, ValueError("bad row"))


@palermo.job(batch=10, batch_wait=2.0)
def crash(batch):
    """Write down each row, mark it as done and go on; one row kills the process."""
    for index, (path, row) in enumerate(batch):
        write(path, json.dumps([row, len(batch)]))
        if row == "bad":
            signal.raise_signal(signal.SIGSEGV)
        batch.done(index)
