"""Jobs that are due later, and jobs that wait to be tried again, as publishers and workers leave them."""

import time

from msgspec.structs import replace

from palermo.client.client import Client
from palermo.core.lifecycle import retry
from palermo.core.message import Message
from tests.inspector.jobs import failure, message, publish

DAY = 86_400.0


def due(id: str, after: float, *args: object, **more: object) -> Message:
    """A job that is due in so many seconds."""
    return replace(message(id, *args, **more), run_at=time.time() + after)  # type: ignore[arg-type]


def retrying(id: str, after: float, *args: object, times: int = 1, **more: object) -> Message:
    """A job that has failed so many times, and is tried again in so many seconds."""
    job = message(id, *args, **more)  # type: ignore[arg-type]
    for number in range(times):
        reason = failure("KeyError" if number % 2 else "ValueError", f"try {number + 1}", at=1_700_000_100 + number)
        job = retry(job, reason, worker="pid:1@test/worker-1", now=time.time(), delay=after)
    return job


def schedule(client: Client, *messages: Message) -> None:
    publish(client, *messages)
