"""Jobs and records as a shop has them, in any number: failed jobs, scheduled jobs, and a journal."""

import json
import random
import time
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pika
from msgspec.structs import replace

from benchmarks.ground import Ground
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT, to_properties
from palermo.client.client import default_client
from palermo.contract.broker import Broker
from palermo.core.failure import Failure
from palermo.core.journal_records import encode, encode_record
from palermo.core.lifecycle import fail, retry
from palermo.core.message import Message
from palermo.core.topology import FAILED_QUEUE, internal

#: Records in a batch of the journal: as many as a busy worker stores together.
_RECORDS = 500

#: Jobs of one call, and the seconds in which scheduled jobs are due.
_JOBS, _AHEAD = 1_000, 7 * 86_400

_FRAME = (
    '  File "/srv/shop/lib/python3.11/site-packages/package_{0}/module_{1}.py", line {2}, in step_{0}\n'
    "    return self._do_something_with(order, customer, retries=retries)\n"
    "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
)
_ERRORS = ("ValueError", "ConnectionError", "shop.errors.Refused", "TimeoutError", "KeyError")


def failed_jobs(count: int) -> Iterator[Message]:
    """Failed jobs of 60 kinds, some of them frequent, with tracebacks of 2 kB; the oldest first."""
    chance = random.Random(4)
    began = int(time.time()) - count
    for number in range(count):
        kind = int(chance.paretovariate(0.7)) % 60
        error = _ERRORS[kind % 5]
        text = f"order {number} of customer-{chance.randrange(10_000)}@example.org was not delivered"
        frames = "".join(_FRAME.format(depth, kind, 100 + depth) for depth in range(10))
        job = Message(
            id=_job_id(chance),
            queue=f"queue-{kind % 7}",
            job=f"shop.jobs.job{kind % 20}",
            body=json.dumps([number, {"order": number, "name": "x" * 100}]).encode(),
            created_at=began + number - 5,
            preview=f"{number}, {{'order': {number}, 'name': '{'x' * 60}'}}",
        )
        trace = f"Traceback (most recent call last):\n{frames}{error}: {text}\n"
        failure = Failure(exception_class=error, message=text, stack_trace=trace, failed_at=began + number)
        yield fail(job, failure, worker=f"pid:{kind}@worker-host/worker-1")


def put_failed(place: Ground, count: int) -> None:
    """Publish failed jobs into the failed queue."""
    place.connect()
    place.make("scratch")
    queue = place.amqp_name(FAILED_QUEUE)
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, place.exchange, FAILED_QUEUE)
        for job in failed_jobs(count):
            channel.basic_publish(place.exchange, FAILED_QUEUE, job.body, to_properties(job))


def put_scheduled(count: int) -> None:
    """Schedule jobs for the next week; one in four has failed and waits for a retry."""
    now = int(time.time())
    error = Failure(exception_class="shop.errors.Refused", message="no", stack_trace="", failed_at=now - 60)

    def scheduled() -> Iterator[Message]:
        for number, job in enumerate(failed_jobs(count)):
            after = 600 + number * _AHEAD / count
            bare = Message(id=job.id, queue=job.queue, job=job.job, body=job.body, created_at=now, preview=job.preview)
            if number % 4:
                yield replace(bare, run_at=now + after)
            else:
                yield retry(bare, error, worker="pid:1@worker-host/worker-1", now=now, delay=after)

    waiting = scheduled()
    while batch := list(islice(waiting, _JOBS)):
        default_client().run(partial(_publish, batch))


async def _publish(messages: list[Message], broker: Broker) -> int:
    return await broker.publish_many(messages)


def put_journal(place: Ground, count: int) -> None:
    """Write this number of records into the journal."""
    default_client().run(lambda broker: broker.journal.append(encode("", [])))
    properties = pika.BasicProperties(delivery_mode=PERSISTENT, timestamp=int(time.time()))
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        for body in _batches(count):
            channel.basic_publish("", internal(place.exchange, "journal"), body, properties)


def _batches(count: int) -> Iterator[bytes]:
    """Two records of each job: that it was enqueued, and that it ended. One job in fifty fails."""
    chance = random.Random(6)
    began = time.time() - count / 1_000
    held: list[dict[str, Any]] = []
    for number in range(count // 2):
        kind = int(chance.paretovariate(0.7)) % 60
        known = {"id": _job_id(chance), "job": f"shop.jobs.job{kind % 20}", "queue": f"queue-{kind % 7}"}
        at = round(began + number / 500, 3)
        run = {**known, "attempt": 1, "slot": 1 + number % 8, "wait": chance.random(), "took": chance.expovariate(1)}
        held.append({"kind": "enqueued", "at": at, **known})
        if number % 50:
            held.append({"kind": "succeeded", "at": at, **run})
        else:
            why = {"error": "shop.errors.Refused", "message": f"order {number} was not delivered"}
            held.append({"kind": "failed", "at": at, **run, **why})
        if len(held) >= _RECORDS:
            yield encode(f"pid:{kind}@worker-host", [*map(encode_record, held)])
            held = []
    yield encode("pid:1@worker-host", [*map(encode_record, held)])


def _job_id(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))
