"""What every test may use: waiting for something to become true."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(probe: Callable[[], T], *, within: float = 30.0, every: float = 0.02) -> T:
    """The first true value of `probe()`; fails with its last value when `within` seconds have gone.

    An AssertionError in the probe counts as false, and is what the test shows in the end.
    """
    deadline = time.monotonic() + within
    while True:
        failure: AssertionError | None = None
        value: T | None = None
        try:
            value = probe()
        except AssertionError as error:
            failure = error
        if failure is None and value:
            return value
        if time.monotonic() > deadline:
            raise failure or AssertionError(f"still {value!r} after {within} s")
        time.sleep(every)
