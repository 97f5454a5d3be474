"""A template that cannot fork, as one that has reached its limit of processes: twice, and then it can."""

import errno
import os

fork = os.fork
left = [OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 2


def flaky():
    if left:
        raise left.pop()
    return fork()


os.fork = flaky
