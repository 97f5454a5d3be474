"""RQ's jobs with a job that depends on all of them. Redis writes each command to the disk before it answers."""

import os
import time

from redis import Redis
from rq import Queue, Retry, get_current_job
from rq.job import Dependency


def one(number: int) -> int:
    return number


def add() -> int:
    job = get_current_job()
    assert job is not None
    return sum(each.return_value() for each in job.fetch_dependencies())


def run(count: int, within: float) -> int:
    queue = Queue("chord", connection=Redis.from_url(os.environ["REDIS_URL"]))
    # Results are kept for 500 s by default, which 10,000 jobs exceed.
    data = [Queue.prepare_data(one, (number,), retry=Retry(max=20), result_ttl=86_400) for number in range(count)]
    jobs = queue.enqueue_many(data)
    last = queue.enqueue(add, depends_on=Dependency(jobs=jobs))
    deadline = time.monotonic() + within
    while last.get_status(refresh=True) not in ("finished", "failed"):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)
    return int(last.return_value(refresh=True))
