"""Finds jobs by their ids: every job is found.

Neither database has an index of ids: it would cost each job one more write. All jobs are read instead, which takes
SQLite about 0.1 s for each 100,000 jobs, and Redis 0.4 s, in steps of bounded size.
"""

from collections.abc import Collection

from palermo.brokers.features.pauses_and_cancels import cancelled
from palermo.brokers.features.steps import StepStore
from palermo.brokers.features.unique_keys import as_they_run
from palermo.contract.finding import JobLocation, failed_at, waiting_at
from palermo.core.lifecycle import JobState
from palermo.core.topology import is_failed


async def find_jobs(store: StepStore, ids: Collection[str], *, failed: bool, beginnings: bool) -> list[JobLocation]:
    """The jobs with these ids, or whose ids begin with one of these texts. Without `failed`, no failed ones."""
    places: list[JobLocation] = []
    for found in await store.find(ids, beginnings=beginnings):
        message = found.message
        if found.worker is not None:
            places.append(JobLocation(state=JobState.WORKING, message=message, worker=found.worker))
        elif found.queue is None or not is_failed(found.queue):
            marked = await cancelled(store, [message])
            (message,) = await as_they_run(store, [message])
            places.append(waiting_at(message, scheduled=found.queue is None, cancelled=message.id in marked))
        elif failed:
            places.append(failed_at(message))
    return places
