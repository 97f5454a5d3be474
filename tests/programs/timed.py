"""Jobs that say when they run."""

import time

from shop import write

import palermo


@palermo.job
def stamp(text):
    write("notes", f"{text} {time.time():.6f}")
