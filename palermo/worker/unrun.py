"""What becomes of jobs that are not run, and why, as their failures tell it."""

import time

from palermo.broker import Delivery
from palermo.core.failure import Failure, from_exception
from palermo.core.keys import UNIQUE_KEY
from palermo.core.lifecycle import Dropped, Raised, Result
from palermo.errors import DuplicateJob, WorkerDied


def duplicate(delivery: Delivery) -> Result:
    """What becomes of a job that may not run, since another one has its key."""
    message, holder = delivery.message, delivery.duplicate_of
    if "recurring" in message.extra:
        return Dropped(f"job {holder} has its key")
    error = DuplicateJob(
        f"job {holder} has the key {message.extra.get(UNIQUE_KEY)!r}, so this one was not run. Requeue it when"
        " that one has ended, or discard it.",
        id=holder,
    )
    return Raised(from_exception(error, failed_at=int(time.time())))


def worker_died(delivery: Delivery) -> Failure:
    """Of one during which too many workers have died."""
    count = len(delivery.deaths)
    error = WorkerDied(
        f"{count} {'worker' if count == 1 else 'workers'} died while they ran it: {', '.join(delivery.deaths)}."
        " It was not run again. Look at how those ended (out of memory, kill -9, the machine) before you requeue it."
    )
    return from_exception(error, failed_at=int(time.time()))
