"""The job of the soak: it says that it ran, and some of them raise."""

import os
import time

import palermo

RAN = os.open("ran", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


@palermo.job
def work(number, takes, raises):
    os.write(RAN, b"%d\n" % number)
    time.sleep(takes)
    if raises:
        raise ArithmeticError(number)
