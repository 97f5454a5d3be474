"""Jobs that wait and jobs that have failed, put there as publishers and workers do it."""

import json
from collections.abc import Sequence

from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.failure import Failure
from palermo.core.lifecycle import Fail, fail
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection

TAG = "pid:1@test"


def message(id: str, *args: object, queue: str = "mail", job: str = "shop.send", **fields: object) -> Message:
    values = {"body": json.dumps(args).encode(), "created_at": 1_700_000_000, **fields}
    return Message(id=id, queue=queue, job=job, **values)  # type: ignore[arg-type]


def failure(kind: str = "ValueError", text: str = "no such address", at: int = 1_700_000_100) -> Failure:
    trace = f'Traceback (most recent call last):\n  File "shop.py", line 7, in send\n    raise\n{kind}: {text}\n'
    return Failure(exception_class=kind, message=text, stack_trace=trace, failed_at=at)


def publish(client: Client, *messages: Message) -> None:
    client.run(lambda broker: broker.publish_many(messages))


def publish_failed(client: Client, *jobs: tuple[Message, Failure]) -> None:
    """Publish the messages, take them as a worker does, and let each fail with its failure, in this order."""
    client.run(lambda broker: _fail(broker, jobs))


def publish_many_failed(client: Client, count: int) -> None:
    """So many failed jobs of one queue, with ids from "0" on."""
    client.run(lambda broker: _fail_many(broker, count))


async def _fail_many(broker: Broker, count: int) -> None:
    await broker.publish_many(message(str(n), n) for n in range(count))
    consumer = await broker.consume(QueueSelection.parse("mail"), slots=1, tag=TAG, report=_report)
    for _ in range(count):
        delivery = await consumer.receive(1)
        await consumer.settle(delivery, Fail(fail(delivery.message, failure(), worker=f"{TAG}/worker-1")))
    await consumer.close()


async def _fail(broker: Broker, jobs: Sequence[tuple[Message, Failure]]) -> None:
    for message, reason in jobs:
        await broker.publish(message)
        consumer = await broker.consume(QueueSelection.parse(message.queue), slots=1, tag=TAG, report=_report)
        delivery = await consumer.receive(1)
        assert delivery.message.id == message.id
        await consumer.settle(delivery, Fail(fail(delivery.message, reason, worker=f"{TAG}/worker-1")))
        await consumer.close()


def _report() -> WorkerInfo:
    return WorkerInfo(id=TAG, host="test", pid=1, queues=("mail",), slots=1, state="working", started_at=0)
