"""Find jobs by id. The search is complete.

Neither database has an index of ids, since it would cost one more write per job. The search reads all jobs in batches,
in about 0.1 s per 100,000 jobs in SQLite and 0.4 s in Redis.
"""

from collections.abc import Collection

from palermo.brokers.features.pauses_and_cancels import cancelled
from palermo.brokers.features.steps import StepStore
from palermo.brokers.features.unique_keys import as_they_run
from palermo.contract.finding import JobLocation, failed_at, waiting_at
from palermo.core.lifecycle import JobState
from palermo.core.topology import is_failed


async def find_jobs(store: StepStore, ids: Collection[str], *, failed: bool, beginnings: bool) -> list[JobLocation]:
    """The jobs with these ids, or, if `beginnings`, with these prefixes. Includes failed jobs if `failed`."""
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
