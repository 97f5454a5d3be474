"""Celery's chord: late acknowledgements, and results in Redis."""

import os

from celery import Celery
from celery import chord as celery_chord

app = Celery("chord", broker=os.environ["AMQP_URL"], backend=os.environ["REDIS_URL"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
)


@app.task
def one(number: int) -> int:
    return number


@app.task
def add(numbers: list[int]) -> int:
    return sum(numbers)


def run(count: int, within: float) -> int:
    ended = celery_chord((one.s(number) for number in range(count)), add.s())()
    # By id, because `ended.get()` looks at all the chord's tasks at each event: for 10,000, it had no sum after 480 s.
    return int(app.AsyncResult(ended.id).get(timeout=within))
