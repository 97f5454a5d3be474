"""What the broker refuses, perhaps for a while: what is possible works, and so does all again."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerRefused
from palermo.inspector.doctor import broker_findings
from tests.contract.tools import PATIENT, ids, message
from tests.contract.unique_jobs import ask, keyed
from tests.contract.workers import consume, take_and_ack
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.journal.reading import Journal
from tests.rabbitmq.conftest import becomes
from tests.rabbitmq_node import Node, add_user, binary, set_permissions, url_of

USER, ALL, NOTHING = "changing", ".*", "^$"


@dataclass
class Two:
    """A session of a user whose permissions change, and one of a user who may do all."""

    node: Node
    session: SessionParameters
    limited: RabbitmqBroker
    free: RabbitmqBroker

    def permit(self, *, configure: str = ALL, write: str = ALL) -> None:
        set_permissions(self.node, USER, configure, write, ALL)


@pytest.fixture(scope="module")
def node(shared_node: Node) -> Node:
    """The node, which knows the user."""
    add_user(shared_node, USER, "secret")
    return shared_node


@pytest.fixture
def two(runner: asyncio.Runner, node: Node, exchange: str) -> Iterator[Two]:
    def session(url: str) -> SessionParameters:
        return SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT)

    set_permissions(node, USER, ALL, ALL, ALL)
    limited = session(url_of(node, user=USER, password="secret"))
    brokers = [runner.run(open_rabbitmq(one)) for one in (limited, session(url_of(node)))]
    yield Two(node, limited, *brokers)
    for broker in brokers:
        runner.run(broker.close())


async def test_a_leader_whose_reply_was_refused_answers_again(two: Two) -> None:
    leading = asyncio.ensure_future(two.limited.run_scheduler())
    await becomes(lambda: len(two.limited.duties) == len(Duty))
    two.permit(write=NOTHING)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await two.free.scheduled(ScheduledFilter())

    two.permit()

    async with asyncio.timeout(HANGS):
        assert (await two.free.scheduled(ScheduledFilter())).total == 0
    leading.cancel()
    await asyncio.wait({leading})


@pytest.mark.slow
def test_a_worker_announces_its_unique_jobs_once_it_may(node: Node, exchange: str, tmp_path: Path) -> None:
    (tmp_path / "syncs.py").write_text("import palermo\n@palermo.job(unique='until_done')\ndef sync(): ...\n")
    with Rig(tmp_path, url=url_of(node), exchange=exchange, module="syncs") as rig:
        set_permissions(node, USER, ALL, ALL, r"^(?!.*~facts)")
        worker = rig.worker(PALERMO_URL=url_of(node, user=USER, password="secret"))
        eventually(lambda: "cannot store the options of unique jobs" in worker.log)
        rig.ready(worker)

        set_permissions(node, USER, ALL, ALL, ALL)

        eventually(lambda: "syncs.sync" in rig.client.run(lambda broker: broker.keys.announced()))


def test_a_refused_journal_holds_no_job_up_and_is_written_later(node: Node, exchange: str, tmp_path: Path) -> None:
    # Few, so that one batch of the journal holds them. The test's own client would make the journal.
    jobs = [f"{number}" for number in range(20)]
    with Rig(tmp_path, url_of(node), exchange, module="shop", journal="off") as rig:
        set_permissions(node, USER, r"^(?!.*~journal)", ALL, ALL)
        worker = rig.worker(PALERMO_URL=url_of(node, user=USER, password="secret"), PALERMO_JOURNAL="all")

        for text in jobs:
            rig.enqueue("note", text)
        assert rig.await_lines(len(jobs)) == jobs
        eventually(lambda: "cannot write the journal" in worker.log)
        assert "write and read permission" in worker.log

        set_permissions(node, USER, ALL, ALL, ALL)
        eventually(lambda: "journal can be written again" in worker.log)
        Journal(rig.client).until(len(jobs), "succeeded")


@pytest.mark.slow
async def test_a_user_is_told_which_permissions_a_unique_job_needs(two: Two) -> None:
    set_permissions(two.node, USER, ALL, ALL, NOTHING)

    with pytest.raises(BrokerRefused, match=rf"refused for user '{USER}'.* read permission"):
        await ask(two.limited, keyed("1"))


async def test_a_job_that_needs_one_queue_more_than_allowed_is_refused_at_once(two: Two) -> None:
    await two.free.publish(message("first", "jobs"))
    # Now the list of tenants is there, and one of the two queues for delayed jobs.
    for other in (message("later", "jobs", run_at=time.time() + 7_200), message("theirs", "jobs", tenant="b")):
        await two.free.publish(other)
    soon = message("soon", "jobs", run_at=time.time() + 60)
    needs_a_queue = (message("new", "new"), soon, message("ours", "jobs", tenant="a"))
    none = binary('{"max-queues": 0}')
    assert two.node.evaluate(f'rabbit_vhost_limit:parse_set(<<"/">>, {none}, <<"tests">>)') == "ok"
    try:
        for job in needs_a_queue:
            with pytest.raises(BrokerRefused, match="queue limit in vhost '/'"):
                await two.free.publish(job)
        await two.free.publish(message("second", "jobs"))
    finally:
        two.node.evaluate('rabbit_vhost_limit:clear(<<"/">>, <<"tests">>)')
    assert {"first", "second"} <= set(await ids(two.free, "jobs"))


# -- a queue that another program has for itself


@contextmanager
def in_use(rig: Rig, queue: str, *, by: str = "consumer") -> Iterator[None]:
    """Another program consumes from the queue and lets nobody else do so, or has declared it for itself."""
    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        channel = connection.channel()
        if by == "consumer":
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(amqp_queue(rig.exchange, queue), lambda *_: None, exclusive=True)
        else:
            channel.queue_declare(amqp_queue(rig.exchange, queue), exclusive=True)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("by", ["consumer", "declaration"])
def test_a_worker_serves_its_other_queues_while_one_is_in_exclusive_use(rabbitmq_rig: Rig, by: str) -> None:
    rig = rabbitmq_rig
    if by == "consumer":
        rig.enqueue("note", "held by the other program", queue="mail")
    with in_use(rig, "mail", by=by):
        worker = rig.worker("-q", "mail,jobs", "-c", "2")
        rig.ready(worker)
        for number in range(20):
            rig.enqueue("note", f"{number}")
        rig.await_lines(20)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        assert worker.log.count("INFO connected") == 1, worker.log
        assert "set_permissions" not in worker.log
        assert by != "consumer" or worker.log.count("cannot use a queue") == 1, worker.log
        eventually(lambda: rig.rows("stats")["processed"] >= 20)

    rig.enqueue("note", "mailed", queue="mail")
    rig.await_lines(22 if by == "consumer" else 21)


def test_a_worker_waits_for_a_queue_in_use_and_the_doctor_says_why(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.enqueue("note", "held by the other program", queue="mail")
    with in_use(rig, "mail"):
        worker = rig.worker("-q", "mail")
        eventually(lambda: "cannot use a queue" in worker.log)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        rig.enqueue("note", "waits", queue="mail")
        eventually(lambda: rig.pending("mail") == 1)
        [found] = [one for one in broker_findings(rig.client) if one.check == "queue mail"]
    rig.await_lines(2)

    assert worker.log.count("INFO connected") == 1, worker.log
    assert (found.level, "uses this queue exclusively" in found.text) == ("problem", True)
    assert "set_permissions" not in found.text + found.advice


async def test_a_queue_remade_by_another_ends_no_session(broker: RabbitmqBroker, exchange: str, channel: Any) -> None:
    consumer = await consume(broker, "a,b")
    for queue in ("a", "b"):
        await broker.publish(message(queue, queue))
        assert (await take_and_ack(consumer)).id == queue
    channel.queue_delete(amqp_queue(exchange, "a"))
    channel.queue_declare(amqp_queue(exchange, "a"), exclusive=True)

    for number in range(20):
        await broker.publish(message(f"{number}", "b"))
        assert (await take_and_ack(consumer)).id == f"{number}"
