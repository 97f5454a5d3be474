"""Waiting for whichever of several events comes first."""

import asyncio


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of these is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
