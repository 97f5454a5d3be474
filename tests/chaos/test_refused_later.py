"""Jobs that are due later and are refused where they would wait: none is doubled, and none stops a worker."""

import asyncio
import re
import time

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import to_properties
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.due_jobs import DueJobs, FarReader
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.time_slots import TimeSlot
from palermo.core.topology import internal
from tests.contract.tools import PATIENT, message, until
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, clear_policy, set_policy, url_of


def limit(node: Node, name: str, most: int, *, with_others: bool = False) -> None:
    """Let this queue refuse what comes while it holds so many; with others whose names begin with its own."""
    end = "" if with_others else "$"
    set_policy(node, name, f"^{re.escape(name)}{end}", {"max-length": most, "overflow": "reject-publish"})


async def test_far_jobs_are_not_doubled_while_the_list_of_stretches_is_full(module_node: Node, exchange: str) -> None:
    session = SessionParameters(address=parse_url(url_of(module_node)), exchange=exchange, timeout=PATIENT)
    full = internal(exchange, "later")
    far = TimeSlot(1, int(time.time() // 300) + 100)
    known, unknown = (TimeSlot(0, far.index * 30 + number) for number in (3, 4))

    link = await open_connection(session, "test")
    try:
        outbox = Outbox(session, link, declarer(link, session))
        for stretch in (far, known):
            await outbox.delay_queues.ensure(stretch)
        publisher = await outbox.open()
        for number, stretch in enumerate((known, known, known, unknown)):
            job = message(f"{number}", run_at=stretch.begins + 1)
            await publisher.send("", delay_queue_name(session.exchange, far), to_properties(job), job.body)
        await asyncio.to_thread(limit, module_node, full, 2)

        for _ in range(3):
            await spread(session, link, far, outbox)

        counts = await outbox.delay_queues.counts([far, known])
        assert counts == {far: 1, known: 3}
        await asyncio.to_thread(clear_policy, module_node, full)
        await spread(session, link, far, outbox)
        assert await outbox.delay_queues.counts([far, known, unknown]) == {far: 0, known: 3, unknown: 1}
    finally:
        await link.close()


def declarer(link: Connection, session: SessionParameters) -> Declarer:
    async def register(queue: str) -> None:
        pass

    return Declarer(link, session.exchange, kind="classic", register=register, register_found=lambda queue: None)


async def spread(session: SessionParameters, link: Connection, far: TimeSlot, outbox: Outbox) -> None:
    """Move the jobs of a time slot to shorter ones, as a leader does, until it stops or none is left."""
    due_jobs = DueJobs(link, outbox.open, outbox.destinations, now=time.time)
    reader = FarReader(session.exchange, link, far, outbox.open, outbox.delay_queues, set(), due_jobs)
    await reader.open()
    await reader.caught_up()

    async def ended() -> bool:
        return reader.closed or not reader.held

    await until(ended, True)
    await reader.leave()


@pytest.mark.parametrize("queues", ["jobs", "jobs,low"])
def test_a_refused_foreign_delayed_job_ends_no_session(rig: Rig, module_node: Node, queues: str) -> None:
    where = internal(rig.settings.exchange, "later")
    limit(module_node, where, 0, with_others=True)
    worker = rig.worker("-c", "2", "-q", queues)
    eventually(lambda: worker.log.count("connected broker") == 1)

    for number in range(5):
        # As another program does it, straight into the job queue.
        headers = {"job-class": "shop.note", "id": f"later {number}", "perform_job_at": int(time.time()) + 600}
        rig.put("jobs", b"[]", delivery_mode=2, headers=headers)
    for number in range(10):
        rig.enqueue("note", f"{number}")

    eventually(lambda: len(rig.lines()) == 10)
    eventually(lambda: "refuses jobs that are not due yet" in worker.log)
    rig.enqueue("note", "late")
    eventually(lambda: "late" in rig.lines())
    assert "connection lost" not in worker.log
    assert worker.log.count("refuses jobs that are not due yet") == 1
    assert not rig.inspector.scheduled.list()
    clear_policy(module_node, where)
    eventually(lambda: len(rig.inspector.scheduled.list()) == 5)
    eventually(lambda: rig.inspector.queues.size("jobs") == 0)
    assert worker.log.count("connected broker") == 1
