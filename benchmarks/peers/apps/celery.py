"""Celery: confirmed publishing, late acknowledgement and a multiplier of one make it keep what the others keep."""

from typing import Any

from celery import Celery
from kombu import Queue

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

app = Celery("bench", broker=SETUP.url)
app.conf.update(
    task_ignore_result=True,
    task_default_queue=SETUP.queues[0],
    task_queues=[
        Queue(queue, durable=True, queue_arguments={"x-queue-type": "quorum"} if SETUP.quorum else None)
        for queue in SETUP.queues
    ],
    task_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": SETUP.confirm},
)


@app.task(name="bench.job")
def job(order: dict[str, Any]) -> None:
    marks.run(order)


class Producer:
    """Enqueues one by one: Celery has nothing for many."""

    awaits = False

    async def open(self) -> None:
        with app.connection_for_write() as connection:
            for queue in app.conf.task_queues:
                queue(connection.default_channel).declare()

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        job.apply_async((order,), queue=queue)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        for order in orders:
            job.apply_async((order,), queue=queue)

    async def close(self) -> None:
        app.close()
        app.amqp.producer_pool.force_close_all()
