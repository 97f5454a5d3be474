import json
import signal

import palermo


@palermo.job(batch=10, batch_wait=2.0)
def gather(items: list[tuple[str, int]]) -> None:
    path = items[0][0]
    with open(path, "a") as notes:
        notes.write(json.dumps([number for _, number in items]) + "\n")
    if any(number == "bad" for _, number in items):
        raise ValueError("a bad one")


@palermo.job(batch=10, batch_wait=0.5, retries=1, backoff=0)
def store(batch):
    """Write down what it was called with; one row is bad."""
    with open(batch[0][0], "a") as notes:
        notes.write(json.dumps([row for _, row in batch]) + "\n")
    for index, (_, row) in enumerate(batch):
        if row == "bad":
            batch.fail(index, ValueError("bad row"))


@palermo.job(batch=10, batch_wait=2.0)
def crash(batch):
    """Write down each row, mark it as done and go on; one row kills the process."""
    for index, (path, row) in enumerate(batch):
        with open(path, "a") as notes:
            notes.write(json.dumps([row, len(batch)]) + "\n")
        if row == "bad":
            signal.raise_signal(signal.SIGSEGV)
        batch.done(index)
