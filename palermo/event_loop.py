"""Creates event loops: uvloop's if it is installed, because it is faster, otherwise asyncio's."""

import asyncio
import os
from contextlib import suppress


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop.

    Opens closed standard descriptors on /dev/null first. Otherwise one of the loop's files could get such a descriptor,
    and uvloop aborts the process when it closes that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):  # if no descriptor is left, creating the loop raises anyway
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # opening uses the lowest free number
    try:
        import uvloop
    except (ImportError, RuntimeError):  # importing fails during interpreter shutdown
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
