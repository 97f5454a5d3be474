"""A unique job whose queue is full: its enqueuer is told so, and its key is free for the next one at once."""

import asyncio
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pika
import pytest

import palermo
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, delay_queue_name, tenant_queue_name
from palermo.client.client import Client
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.due_times import Intake
from palermo.core.topology import amqp_queue
from palermo.core.unique_rules import REPLACE, THROTTLE, EnqueueAnswer, EnqueueOutcome
from palermo.errors import NotFound, PublishRefused
from palermo.settings.settings import Settings
from tests.chaos.brokers import two_brokers
from tests.contract.timing import time_kept
from tests.contract.tools import PATIENT, ids, until
from tests.contract.unique_jobs import ask, holders, keyed
from tests.helpers import eventually
from tests.tcp_proxy import TcpProxy

FULL = {"x-max-length": 0, "x-overflow": "reject-publish"}


@palermo.job(name="shop.refused_key")
def declared(number: int) -> None: ...


#: When the delayed one is due.
TOMORROW = time.time() + 86_400

#: Every form of enqueue, each with another way to need a key.
FORMS: dict[str, Callable[[Client], Any]] = {
    "enqueue": lambda client: client.enqueue("shop.mail", (1,), unique="until_done"),
    "delayed": lambda client: client.enqueue("shop.mail", (1,), unique="until_done", run_at=TOMORROW),
    "declared": lambda client: client.enqueue(declared.definition, (1,), unique=600.0, tenant="a"),
    "enqueue_many": lambda client: client.enqueue_many(
        [("shop.mail", (1,), {})], unique="until_start", on_duplicate="replace"
    )[0],
    "enqueue_async": lambda client: asyncio.run(client.enqueue_async("shop.mail", (1,), throttle=600.0)),
}


class FullQueue:
    """A queue of another program's making that takes no job; once it is deleted, Palermo makes one that takes all."""

    def __init__(self, channel: Any, name: str) -> None:
        channel.queue_declare(name, durable=True, arguments=FULL)
        self.make_room: Callable[[], object] = lambda: channel.queue_delete(name)


#: Makes a queue that takes no job, by its name.
Full = Callable[[str], FullQueue]


@pytest.fixture
def full(rabbitmq_url: str) -> Iterator[Full]:
    """Makes an AMQP queue full."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        yield lambda name: FullQueue(connection.channel(), name)


@pytest.fixture
def clients(rabbitmq_url: str, exchange: str) -> Iterator[list[Client]]:
    settings = Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)
    clients = [Client(settings) for _ in range(2)]
    yield clients
    for client in clients:
        client.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_refused_unique_job_leaves_no_key(full: Full, exchange: str, clients: list[Client], form: str) -> None:
    first, second = clients
    tenants_own = tenant_queue_name(exchange, TenantQueue("jobs", "a"))
    names = {"delayed": delay_queue_name(exchange, Intake.NEW), "declared": tenants_own}
    queue = full(names.get(form, amqp_queue(exchange, "jobs")))

    for client in (first, second, first):
        with pytest.raises(PublishRefused, match="the queue is full"):
            FORMS[form](client)
    queue.make_room()

    job = FORMS[form](second)
    assert (job.enqueued, job.conflict) == (True, None)


#: Enqueues a unique job, and ends in the moment of its refusal: then no leader lives.
PROGRAM = """
import asyncio, os, sys
from palermo.client.client import Client
from palermo.errors import PublishRefused
from palermo.settings.settings import Settings

async def main(client):
    try:
        await client.enqueue_async("shop.mail", (1,), unique="until_done")
    except PublishRefused:
        os._exit(3)

asyncio.run(main(Client(Settings(url=sys.argv[1], exchange=sys.argv[2]))))
"""


def test_a_refused_unique_job_never_runs(full: Full, rabbitmq_url: str, exchange: str, clients: list[Client]) -> None:
    queue = full(amqp_queue(exchange, "jobs"))
    program = subprocess.run([sys.executable, "-c", PROGRAM, rabbitmq_url, exchange], check=False)
    assert program.returncode == 3
    queue.make_room()

    assert clients[0].run(lambda broker: broker.keys.known()) == []
    other = clients[0].enqueue("shop.mail", (2,))
    assert clients[0].run(ids) == [other.id]


def test_a_refusal_that_is_cut_off_keeps_the_job(full: Full, rabbitmq_url: str, exchange: str, proxy: TcpProxy) -> None:
    queue = full(amqp_queue(exchange, "jobs"))

    class CutsOnce(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "refuses jobs of the ledger" in record.getMessage():
                logging.getLogger("palermo.rabbitmq").removeHandler(self)
                proxy.hang_up(reset=True)

    logging.getLogger("palermo.rabbitmq").addHandler(CutsOnce())
    with Client(Settings(url=proxy.url(rabbitmq_url), exchange=exchange, publish_timeout=PATIENT)) as client:
        job = client.enqueue("shop.mail", (1,), unique="until_done")
        queue.make_room()

        eventually(lambda: job.id in client.run(waiting))
        assert client.run(ids) == [job.id]


async def waiting(broker: Broker) -> list[str]:
    with suppress(NotFound):
        return await ids(broker)
    return []


async def test_no_duplicate_of_a_refused_job_is_reported(full: Full, exchange: str, session: SessionParameters) -> None:
    queue = full(amqp_queue(exchange, "jobs"))

    async with two_brokers(session) as (leader, broker), time_kept(leader):
        for more in ({}, {"on_duplicate": REPLACE}, {"spread": THROTTLE, "seconds": 600.0}):
            key = f"key {more}"
            asked = (ask(broker, keyed(f"{number}", key=key), key=key, **more) for number in range(20))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            kept = [one for one in answers if isinstance(one, EnqueueAnswer) and one.outcome is EnqueueOutcome.KEPT]
            assert [one for one in answers if not isinstance(one, PublishRefused) and one not in kept] == []
        await until(lambda: holders(broker), [])
        queue.make_room()

        answers = await asyncio.gather(*(ask(broker, keyed(f"{number}")) for number in range(20)))

        assert Counter(one.outcome for one in answers) == {EnqueueOutcome.STORED: 1, EnqueueOutcome.DUPLICATE: 19}
        assert await ids(broker) == [answers[0].id]


async def test_of_many_keys_those_of_refused_jobs_return(full: Full, exchange: str, session: SessionParameters) -> None:
    full(amqp_queue(exchange, "jobs"))

    async with two_brokers(session) as (leader, broker), time_kept(leader):
        queues = ["jobs" if number % 2 else "other" for number in range(20)]
        jobs = [keyed(f"{number}", key=f"{number}", queue=queue) for number, queue in enumerate(queues)]
        asked = (ask(broker, job, key=job.id) for job in jobs)
        answers = await asyncio.gather(*asked, return_exceptions=True)

        refused = [number for number, one in enumerate(answers) if isinstance(one, PublishRefused)]
        assert [queues[number] for number in refused] == ["jobs"] * 10
        stored = [f"{number}" for number, queue in enumerate(queues) if queue == "other"]
        assert sorted(id for id, _ in await holders(broker)) == sorted(stored)
        assert sorted(await ids(broker, "other")) == sorted(stored)
