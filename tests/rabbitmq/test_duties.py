"""The two duties of leaders: which sessions have them, standing in, and what one duty needs of the other."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.leadership import leader_client, operations
from palermo.brokers.rabbitmq.leadership.fair_scheduler import FairScheduler
from palermo.brokers.rabbitmq.leadership.leader_client import LeaderClient
from palermo.brokers.rabbitmq.leadership.main_duty import MainDuty
from palermo.brokers.rabbitmq.leadership.operations import ListKeys, ListScheduled, Operation
from palermo.brokers.rabbitmq.leadership.work import leader_queue
from palermo.brokers.rabbitmq.scheduling.scheduled_index import ScheduledIndex
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import CANCEL, ScheduledFilter
from palermo.core.election import Duty
from palermo.errors import BrokerUnavailable
from tests.contract.timing import due, time_kept
from tests.contract.tools import messages, stopped, until
from tests.contract.unique_jobs import ask, holders, keyed
from tests.helpers import HANGS
from tests.rabbitmq.conftest import Open

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def _nobody_takes_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that leads leaves the other duty to those that do not, for longer than any test takes."""
    monkeypatch.setattr(leader_client, "_LEFT_TO_OTHERS", 3_600.0)
    monkeypatch.setattr(leader_client, "_LEFT_AT_FIRST", 3_600.0)


class Crew:
    """Sessions that stand for election."""

    def __init__(self, session: SessionParameters) -> None:
        self._session = session
        self.brokers: list[RabbitmqBroker] = []
        self._standing: dict[RabbitmqBroker, asyncio.Task[None]] = {}

    async def start(self, count: int) -> list[RabbitmqBroker]:
        """So many more sessions, which begin together."""
        found = [await open_rabbitmq(self._session) for _ in range(count)]
        self.brokers += found
        self._standing |= {broker: asyncio.ensure_future(broker.run_scheduler()) for broker in found}
        return found

    async def kill(self, broker: RabbitmqBroker) -> None:
        """End all connections of a session without a word, as kill -9 of its process does."""
        leaders = broker._leader_client._leaders.values()
        for connection in [broker._connection, *(leader._connection for leader in leaders)]:
            connection.raw.abort()
        self.brokers.remove(broker)
        await asyncio.wait({self._standing.pop(broker)})
        await broker.close()

    async def shared(self) -> list[int]:
        """How many duties each session has, fewest first."""
        return sorted(len(broker.duties) for broker in self.brokers)

    def of(self, duty: Duty) -> RabbitmqBroker:
        """The one session that has this duty."""
        (found,) = (broker for broker in self.brokers if duty in broker.duties)
        return found

    async def close(self) -> None:
        for task in self._standing.values():
            task.cancel()
        if self._standing:
            await asyncio.wait(self._standing.values())
        for broker in self.brokers:
            await broker.close()


def crew_of(runner: asyncio.Runner, session: SessionParameters, count: int, shared: list[int]) -> Iterator[Crew]:
    crew = Crew(session)
    runner.run(crew.start(count))
    runner.run(until(crew.shared, shared))
    assert Counter(duty for broker in crew.brokers for duty in broker.duties) == Counter(Duty)
    yield crew
    runner.run(crew.close())


@pytest.fixture
def crew(runner: asyncio.Runner, session: SessionParameters, _nobody_takes_two: None) -> Iterator[Crew]:
    """Two sessions with a duty each."""
    yield from crew_of(runner, session, 2, [1, 1])


@pytest.fixture
def alone(runner: asyncio.Runner, session: SessionParameters) -> Iterator[Crew]:
    """One session with both duties."""
    yield from crew_of(runner, session, 1, [2])


# -- who has them


@pytest.mark.slow
async def test_while_nothing_happens_neither_rabbitmq_nor_leaders_log_errors(
    crew: Crew, errors: list[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks, look = list[bool](), LeaderClient._is_vacant

    async def counted(client: LeaderClient, *arguments: Any) -> bool:
        looks.append(found := await look(client, *arguments))
        return found

    monkeypatch.setattr(LeaderClient, "_is_vacant", counted)
    errors.clear()
    caplog.clear()

    await until(lambda: len(looks) >= 8)
    assert not any(looks)
    assert (errors, [record.message for record in caplog.records if record.levelname == "WARNING"]) == ([], [])


async def test_idle_sessions_take_the_duties_of_a_killed_leader(crew: Crew) -> None:
    await crew.start(2)
    for duty in Duty:
        await crew.kill(crew.of(duty))
    await until(crew.shared, [1, 1])


async def test_a_session_takes_the_other_duty_if_no_idle_one_does(alone: Crew) -> None:
    await alone.start(1)
    await alone.kill(alone.brokers[0])
    await until(alone.shared, [2])


async def test_an_unexpected_error_ends_one_duty_for_a_moment_only(
    alone: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_client, "_HANDED_OVER", 0.1)
    read = FairScheduler._are_there

    async def fails_once(scheduler: FairScheduler) -> bool:
        if "KeyError" not in caplog.text:
            raise KeyError("a record that nobody has thought of")
        return await read(scheduler)

    (broker,) = alone.brokers
    leader = broker._leader_client._leaders[Duty.MAIN]
    monkeypatch.setattr(FairScheduler, "_are_there", fails_once)

    await until(lambda: "cannot lead duty=tenants" in caplog.text)
    await until(alone.shared, [2])
    assert broker._leader_client._leaders[Duty.MAIN] is leader


@pytest.mark.parametrize(("duty", "loses"), [*((duty, "queue") for duty in Duty), (Duty.MAIN, "connection")])
async def test_the_next_leader_knows_all_keys(alone: Crew, session: SessionParameters, duty: Duty, loses: str) -> None:
    (broker,) = alone.brokers
    assert (await ask(broker, keyed("a"))).outcome == "stored"
    leader = broker._leader_client._leaders[duty]
    if loses == "queue":
        # As `rabbitmqctl delete_queue` does. Other connections may not delete an exclusive queue.
        await leader._connection.delete(leader_queue(session.exchange, duty))
    else:
        leader._connection.raw.abort()

    await until(lambda: broker._leader_client._leaders.get(duty) not in (None, leader))
    assert (await ask(broker, keyed("b"))).outcome == "duplicate"
    assert leader._connection.error is not None


async def test_a_leader_hands_over_to_a_session_of_a_newer_format(alone: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    (older,) = alone.brokers
    monkeypatch.setattr(operations, "FORMAT", 2)
    (newer,) = await alone.start(1)

    page = await newer._leader_client.ask(ListKeys("", 0, 1, format=2))

    assert page.total == 0
    assert (older.duties, newer.duties) == ((Duty.TENANTS,), (Duty.MAIN,))


# -- standing in


@pytest.mark.slow
async def test_a_leader_that_stands_in_hands_over_to_one_that_stands_by(broker: RabbitmqBroker, another: Open) -> None:
    assert (await ask(broker, keyed("a"))).outcome == "stored"
    assert (list(broker._leader_client._leaders), broker.duties) == ([Duty.MAIN], ())
    worker = await another()
    standing_by = asyncio.ensure_future(worker.run_scheduler())

    async with asyncio.timeout(HANGS):
        while Duty.MAIN not in worker.duties:
            assert (await ask(broker, keyed("b"))).outcome == "duplicate"

    assert (await ask(broker, keyed("c"))).outcome == "duplicate"
    assert broker._leader_client._leaders == {}
    await stopped(standing_by)


async def test_a_leader_that_stands_in_publishes_no_job_that_is_due(broker: RabbitmqBroker) -> None:
    await broker.publish(overdue := due("overdue", 0.5, queue="jobs"))
    await ask(broker, keyed("a"))
    await until(lambda: time.time() > (overdue.run_at or 0.0) + 1.0)

    page = await broker.scheduled(ScheduledFilter())

    assert [message.id for message in page.messages] == ["overdue"]
    assert [job.id for job in await broker.alter_scheduled(ScheduledFilter(), CANCEL)] == ["overdue"]


# -- what one needs of another


async def filled(broker: RabbitmqBroker, tenants: str) -> None:
    """A queue that is full of nobody's jobs, and a unique job of each of these tenants, which waits for its turn."""
    await broker.publish_many(messages(20))
    for tenant in tenants:
        await ask(broker, keyed(tenant, key=tenant, tenant=tenant), key=tenant)


async def test_a_purge_continues_when_the_leader_in_tenants_is_killed(crew: Crew, broker: RabbitmqBroker) -> None:
    await filled(broker, "ab")
    killed = crew.of(Duty.TENANTS)
    await crew.start(1)
    purging = asyncio.ensure_future(broker.purge("jobs"))
    await crew.kill(killed)

    assert await purging in (0, 20, 22)  # of a purge that was done twice the second one's count is told

    assert await holders(broker) == []
    assert await broker.tenants.of("jobs") == []


# -- ends


@pytest.mark.slow
@pytest.mark.parametrize("turns", [0, 1, 3, 7])
async def test_another_session_leads_after_one_that_lost_its_connection(another: Open, turns: int) -> None:
    """Nothing of a leader may stay that is stopped while it stops, or no other session could lead."""
    first, second = await another(), await another()

    leading = asyncio.ensure_future(first.run_scheduler())
    await until(lambda: len(first.duties) == len(Duty))

    first._connection.raw.abort()
    await first._connection.lost.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    await stopped(leading)

    async with time_kept(second):
        await until(lambda: len(second.duties) == len(Duty))


@pytest.mark.slow
@pytest.mark.parametrize("operation", [ListScheduled(ScheduledFilter(), 0, 10), ListKeys("", 0, 10)])
@pytest.mark.parametrize("under_way", [True, False])
async def test_a_leader_that_ends_leaves_requests_to_the_next(
    broker: RabbitmqBroker, another: Open, operation: Operation[Any], *, under_way: bool
) -> None:
    await broker.publish(due("later", 3_600.0, queue="jobs"))
    await ask(broker, keyed("a"))
    leader = broker._leader_client._leaders[Duty.MAIN]
    assert isinstance(leader._work, MainDuty)
    scheduled, keys = leader._work._scheduled_jobs, leader._work._unique_keys
    asker = await another()

    # The leader waits for one part, and has closed the others, when it gets to the request.
    async with leader._work._recurring_jobs._turn:
        async with scheduled._buckets.turn:
            if under_way:
                asking = asyncio.ensure_future(asker._leader_client.ask(operation))
                await until(lambda: leader._under_way or asking.done())
            closing = asyncio.ensure_future(broker._leader_client.close())
            await until(lambda: scheduled._buckets._closed and keys._closed)
        if not under_way:
            asking = asyncio.ensure_future(asker._leader_client.ask(operation))
        await closing

    assert (await asking).total == 1


async def test_a_leader_that_ends_hides_no_scheduled_job(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.publish(due("later", 3_600.0, queue="jobs"))
    reading, may_read, find = threading.Event(), threading.Event(), ScheduledIndex.find

    def held(*arguments: Any) -> Any:
        reading.set()
        may_read.wait(HANGS)
        return find(*arguments)

    monkeypatch.setattr(ScheduledIndex, "find", held)
    asker = await another()
    await ask(broker, keyed("a"))
    asking = asyncio.ensure_future(asker.scheduled(ScheduledFilter()))
    await until(reading.is_set)
    leader = broker._leader_client._leaders[Duty.MAIN]
    assert isinstance(leader._work, MainDuty)
    buckets = leader._work._scheduled_jobs._buckets
    async with leader._work._recurring_jobs._turn:
        closing = asyncio.ensure_future(broker._leader_client.close())
        await until(lambda: buckets._closed)
        may_read.set()
        await closing

    assert (await asking).total == 1


async def test_a_session_that_is_being_closed_asks_no_leader_any_more(broker: RabbitmqBroker) -> None:
    await broker._leader_client.close()

    with pytest.raises(BrokerUnavailable, match="is being closed"):
        await ask(broker, keyed("1"))


async def test_a_leader_cut_short_ends_its_connection(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = await broker._leader_client._take(Duty.MAIN)
    assert leader is not None
    monkeypatch.setattr(leader._work, "close", asyncio.Event().wait)
    ending = asyncio.ensure_future(leader.close())
    await asyncio.sleep(0)

    await stopped(ending)

    assert leader._connection.error is not None
