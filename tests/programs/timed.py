"""Jobs that say when they run."""

import time

from shop import write

import palermo


def say(what):
    write("notes", f"{what} {time.time():.6f}")


@palermo.job
def stamp(text):
    say(text)
