"""A leader killed at any step of its ledger's work leaves the next one the right states, and each job once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.leadership import leader_client
from palermo.brokers.rabbitmq.publishing import ledger as ledgers
from palermo.brokers.rabbitmq.publishing import ledger_records
from palermo.brokers.rabbitmq.publishing.ledger import Ledger, Table
from palermo.brokers.rabbitmq.publishing.ledger_records import FORMAT
from palermo.brokers.rabbitmq.unique import run_ends
from palermo.contract.broker import SessionParameters
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.plain import Plain
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, LeaderUnavailable, NotFound, PalermoError
from tests.contract.timing import time_kept
from tests.contract.tools import consume, ids, message, until
from tests.contract.unique_jobs import ask, begun, holders, keyed
from tests.rabbitmq.conftest import Open, becomes, outbox_on


class Number(Plain, frozen=True):
    """A state."""

    number: int


@asynccontextmanager
async def leading(session: SessionParameters, *, drops_copies: bool = True) -> AsyncIterator[Ledger[Number]]:
    """A ledger as a leader has it, which is not open yet."""
    connection = await open_connection(session, "leader")
    queue, arguments = internal(session.exchange, "ledger"), versions.arguments("classic", connection.version)
    table = Table(session.exchange, queue, arguments, Number.from_plain, drops_copies=drops_copies)
    try:
        yield Ledger(table, connection, outbox_on(connection, session))
    finally:
        await connection.close()


#: What a commit and a snapshot store, in this order.
STORED = ("the batch", "the jobs", "the note that they are stored", "a part of a snapshot", "the end of a snapshot")


def stored_by(records: Sequence[Any]) -> str:
    """What these records are."""
    first = records[0]
    if "floor" in first:
        return STORED[4]
    if "refused" not in first:
        return STORED[3]
    return STORED[0] if "set" in first else STORED[2]


@pytest.mark.parametrize("drops_copies", [True, False], ids=["keys", "ticks"])
@pytest.mark.parametrize("step", [f"{when} {what}" for what in STORED for when in ("before", "after")])
async def test_a_leader_killed_at_any_step_leaves_its_states_and_each_job_once(
    broker: RabbitmqBroker, session: SessionParameters, monkeypatch: pytest.MonkeyPatch, step: str, drops_copies: bool
) -> None:
    append, publish, killed = StateLog.append, Ledger._publish, asyncio.Event()

    async def kill_at(here: str, ledger: Ledger[Number]) -> None:
        if here == step:
            ledger._connection.raw.abort()
            killed.set()
            raise BrokerUnavailable("killed")

    async with leading(session, drops_copies=drops_copies) as first:

        async def appending(log: StateLog, *records: Any) -> list[Record]:
            await kill_at(f"before {stored_by(records)}", first)
            found = await append(log, *records)
            await kill_at(f"after {stored_by(records)}", first)
            return found

        async def publishing(ledger: Ledger[Number], jobs: Sequence[Message]) -> dict[str, PalermoError]:
            await kill_at(f"before {STORED[1]}", first)
            refused = await publish(ledger, jobs)
            await kill_at(f"after {STORED[1]}", first)
            return refused

        async def lead() -> None:
            await first.commit({"new": Number(3), "gone": None}, [message("job")])
            monkeypatch.setattr(ledgers, "_MOST", 1)
            await first.tidy({"kept": Number(1), "new": Number(3)})

        await first.open()
        await first.commit({"kept": Number(1), "gone": Number(2)})
        with monkeypatch.context() as patch:
            patch.setattr(StateLog, "append", appending)
            patch.setattr(Ledger, "_publish", publishing)
            work = asyncio.ensure_future(lead())
            await killed.wait()
            await asyncio.wait({work})
            work.exception()

    async with leading(session, drops_copies=drops_copies) as second:
        states, _ = await second.open()
        old, new = {"kept": Number(1), "gone": Number(2)}, {"kept": Number(1), "new": Number(3)}
        assert states == new or step in ("before the batch", "before the jobs")
        assert states in (old, new)
        await until(lambda: waiting(broker), ["job"] if states == new else [])


async def waiting(broker: RabbitmqBroker) -> list[str]:
    """The ids of the jobs in the queue, which may be missing."""
    try:
        return await ids(broker)
    except NotFound:
        return []


async def test_a_state_that_a_leader_cannot_read_outlives_its_snapshot(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(session) as first:
        await first.open()
        await first.commit({"odd": Odd(1), "even": Number(2)})
    async with leading(session) as second:
        states, _ = await second.open()
        assert states == {"even": Number(2)}
        monkeypatch.setattr(ledgers, "_MOST", 1)
        await second.tidy(states)
        await becomes(lambda: second._snapshot is not None and second._snapshot.done())
    async with leading(session) as third:
        await third.open()
        assert third._unread == {"odd": {"odd": 1}}


class Odd(Plain, frozen=True):
    """A state that this version does not know."""

    odd: int


async def test_an_old_leader_hands_over_to_one_that_knows_the_next_format(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_client, "_PATIENCE", 3.0)
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        monkeypatch.setattr(run_ends, "FORMAT", FORMAT + 1)  # a worker of the next version
        worker = await consume(await another())
        await worker.settle(await begun(worker), Ack())
        await becomes(lambda: f"a record has format {FORMAT + 1}" in caplog.text)

        with pytest.raises(LeaderUnavailable, match="start a worker of the version that wrote it"):
            await ask(await another(timeout=1.0), keyed("b"))

        monkeypatch.setattr(ledger_records, "FORMAT", FORMAT + 1)  # a leader of the next version
        assert (await ask(broker, keyed("c"))).outcome == "stored"
        assert await holders(broker) == [("c", "waiting")]
