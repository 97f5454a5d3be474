"""Jobs that fail, snooze and discard themselves; those with `a` in front are coroutines."""

from crew import note, write  # noqa: F401

import palermo


@palermo.job(retries=3, backoff=0)
def fails(path, name):
    write(path, f"{name} {palermo.current_job().attempt}")
    raise ValueError(f"{name} in try {palermo.current_job().attempt}")


@fails.hook
def on_exhausted(error, path, name):
    write(path, f"{name} exhausted by {error}")


@palermo.job(retries=3, backoff=0)
async def afails(path, name):
    write(path, f"{name} {palermo.current_job().attempt}")
    raise ValueError(f"{name} in try {palermo.current_job().attempt}")


@afails.hook
def on_exhausted(error, path, name):  # noqa: F811
    write(path, f"{name} exhausted by {error}")


@palermo.job
def snoozes(path, times):
    with open(path) as file:
        done = len(file.readlines())
    write(path, f"snoozes {palermo.current_job().attempt}")
    if done < times:
        raise palermo.Snooze(0)


@palermo.job(discard_on=KeyError)
def discards(kind):
    if kind == "raises":
        raise KeyError("gone")
    raise palermo.Discard("user is gone")
