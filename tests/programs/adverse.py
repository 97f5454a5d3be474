"""A job for bad days that runs in batches."""

import os
import time

from shop import write

import palermo


@palermo.job(batch=10, batch_wait=0.1)
def store(numbers):
    write("calls", f"{os.getpid()} {len(numbers)}")
    time.sleep(0.03)
    for number in numbers:
        write("stored", number)
