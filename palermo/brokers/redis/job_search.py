"""Finds jobs by their ids: every job is found.

No index of ids is kept: it would cost each job one more write, and its deletion a read of its message. Instead a script
goes through all jobs, in steps of bounded size, in about 0.4 s for each 100,000 jobs.
"""

from collections.abc import Collection

from palermo.brokers.features.pauses_and_cancels import cancelled_by
from palermo.brokers.features.steps import text_of
from palermo.brokers.features.unique_keys import as_they_run
from palermo.brokers.redis.jobs import from_blob
from palermo.brokers.redis.store import Store
from palermo.contract.finding import MOST_FOUND, JobLocation, failed_at, waiting_at
from palermo.core.lifecycle import JobState
from palermo.core.topology import is_failed


async def find_jobs(store: Store, ids: Collection[str], *, failed: bool, beginnings: bool) -> list[JobLocation]:
    """The jobs with these ids, or whose ids begin with one of these texts. Without `failed`, no failed ones."""
    blobs: dict[bytes, bytes] = {}
    cursor = b"0"
    while True:
        cursor, some = await store.run("look", "find", cursor, "1" if beginnings else "", *ids)
        blobs |= dict(some)
        if cursor == b"0" or len(blobs) >= MOST_FOUND:
            break
    found = [await _place(store, number, blob) for number, blob in blobs.items()]
    return [place for place in found if place is not None and (failed or place.state != JobState.FAILED)]


async def _place(store: Store, number: bytes, blob: bytes) -> JobLocation | None:
    """Where the job with this number is; None if it is gone by now."""
    message = from_blob(blob, None)
    kind, name, mark = await store.run("look", "place", message.queue, message.tenant, number)
    match kind:
        case b"held":
            return JobLocation(state=JobState.WORKING, message=message, worker=text_of(name))
        case b"waits" if is_failed(queue := text_of(name)):
            return failed_at(from_blob(blob, queue))
        case b"waits" | b"later":
            (message,) = await as_they_run(store, [message])
            return waiting_at(message, scheduled=kind == b"later", cancelled=cancelled_by(mark, message) is not None)
    return None
