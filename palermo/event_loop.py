"""The event loops that Palermo makes: uvloop's if it is installed, which is faster, or else asyncio's."""

import asyncio
import os
from contextlib import suppress


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop.

    A standard descriptor that is closed becomes /dev/null first. Otherwise a file of the loop would get its number, and
    uvloop aborts a process when it closes such a file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):  # without a descriptor left, making the loop raises too
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    try:
        import uvloop
    except (ImportError, RuntimeError):  # a program that is ending cannot import it
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
