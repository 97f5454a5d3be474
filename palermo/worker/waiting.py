"""Waits for the first of several events."""

import asyncio


async def wait_for_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until one of these is set, for at most `timeout` seconds."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
