"""The leader's recurring jobs on RabbitMQ, with clocks that jump and states that were left behind."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.recurring_jobs import RecurringJobs
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.recurring_entries import TICK, EntryChange
from palermo.contract.scheduled import ignore_jobs
from palermo.contract.worker_info import WorkerCommand
from palermo.core.topology import amqp_queue, internal
from palermo.errors import NotFound
from tests.contract.recurring import entry, fire, seldom
from tests.contract.timing import time_kept
from tests.contract.tools import Report, consume, ids, message, nothing_for, take_and_ack, until
from tests.rabbitmq.patience import have_patience

HOUR = 3_600.0


class Wall:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@asynccontextmanager
async def opened(session: SessionParameters) -> AsyncIterator[tuple[Broker, Connection]]:
    broker, connection = await open_broker(session), await open_connection(session, "test")
    try:
        yield broker, connection
    finally:
        await connection.close()
        await broker.close()


async def ticker_on(connection: Connection, session: SessionParameters, wall: Callable[[], float]) -> RecurringJobs:
    async def register(queue: str) -> None:
        pass

    declarer = Declarer(
        connection, session.exchange, kind="classic", register=register, register_found=lambda queue: None
    )
    states = versions.arguments("classic", connection.version)
    outbox = Outbox(session, connection, declarer)
    publisher = await Publisher.open(connection)
    return RecurringJobs(
        session.exchange, connection, publisher, outbox.destinations, states, now=wall, fired=ignore_jobs
    )


@asynccontextmanager
async def running(ticker: RecurringJobs) -> AsyncIterator[None]:
    task = asyncio.ensure_future(ticker.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def waiting(broker: Broker) -> int:
    """How many jobs wait in the queue, which may be gone."""
    try:
        return (await broker.browse("jobs", limit=0)).total
    except NotFound:
        return 0


async def ready(ticker: RecurringJobs) -> int:
    """How many entries have their next jobs ready to be sent."""
    return sum(held.ready is not None for held in ticker._held.values())


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
async def test_a_clock_that_jumps_makes_nothing_early_and_the_rest_go_by_policy(
    session: SessionParameters, policy: str
) -> None:
    wall = Wall()
    async with opened(session) as (broker, connection):
        consumer = await consume(broker)
        ticker = await ticker_on(connection, session, wall)
        async with running(ticker):
            await ticker.change(EntryChange.put(entry(every=HOUR, missed=policy)))
            (first,) = await ticker.entries()
            due = first.next or 0.0
            wall.ahead = due - time.time() - 60
            await nothing_for(consumer)
            wall.ahead = due - time.time() - 1.5
            got = await take_and_ack(consumer)
            assert (got.extra["tick"], wall() >= due) == (due, True)

            # Back by two hours: the tick has fired, and none is early.
            wall.ahead -= 2 * HOUR
            await nothing_for(consumer)

            # Three and a half hours on: two ticks were missed, and one passed half an hour ago.
            wall.ahead = due + 3.5 * HOUR - time.time()
            wanted = {"skip": [], "once": [3], "all": [1, 2, 3]}[policy]
            assert [(await take_and_ack(consumer)).extra["tick"] for _ in wanted] == [due + n * HOUR for n in wanted]
            await nothing_for(consumer)


async def test_many_that_are_due_together_fire_once_each_even_if_their_queue_was_deleted_just_before(
    session: SessionParameters,
) -> None:
    wall = Wall()
    async with opened(session) as (broker, connection):
        ticker = await ticker_on(connection, session, wall)
        async with running(ticker):
            for number in range(120):
                await ticker.change(EntryChange.put(entry(f"sweep {number}", every=HOUR)))
            for _ in range(2):
                due = (await ticker.entries())[0].next or 0.0
                wall.ahead = due - time.time() - 1.0
                await until(lambda: waiting(broker), 120)
                fired = (await broker.browse("jobs", limit=200)).messages
                assert {one.id.partition("@")[0] for one in fired} == {f"sweep {number}" for number in range(120)}
                assert {one.extra["tick"] for one in fired} == {due}
                await broker.delete("jobs")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_leaders_that_end_in_the_middle_of_a_tick_fire_none_of_its_jobs_twice(
    session: SessionParameters, kind: str
) -> None:
    session = replace(session, queue_type=kind)
    jobs = amqp_queue(session.exchange, "jobs")
    async with opened(session) as (broker, connection):

        async def fired() -> int:
            found = await connection.probe(jobs)
            return found.messages if found.exists else 0

        async with time_kept(broker):
            for number in range(200):
                await broker.change_recurring(EntryChange.put(entry(f"sweep {number}", since=0.0)))
        for _ in range(5):
            before = await fired()

            async def more(before: int = before) -> bool:
                return await fired() > before

            async with time_kept(broker):
                await until(more, True)

        found = await ids(broker)
        assert len(found) == len(set(found))


async def test_jobs_that_are_ready_fire_once_each_though_the_channel_they_were_written_for_ends_before_the_tick(
    session: SessionParameters,
) -> None:
    wall = Wall()
    async with opened(session) as (broker, connection):
        ticker = await ticker_on(connection, session, wall)
        async with running(ticker):
            # More than a megabyte together: they leave in several writes.
            for number in range(30):
                await ticker.change(
                    EntryChange.put(entry(f"sweep {number}", every=HOUR, sent={"body": b"1" * 100_000}))
                )
            due = 0.0
            for is_cut in (False, False, True):
                due = (await ticker.entries())[0].next or 0.0
                wall.ahead = due - time.time() - 1.0
                await until(lambda: ready(ticker), 30)
                if is_cut:
                    (await ticker._destinations.publisher()).channel.abandon()
                await until(lambda: waiting(broker), 30)
                fired = (await broker.browse("jobs", limit=40)).messages
                assert {one.extra["tick"] for one in fired} == {due}
                assert len({one.id for one in fired}) == 30
                await until(lambda: ready(ticker), 0)
                await broker.purge("jobs")


async def test_ticks_that_a_dead_leader_fired_by_a_clock_ahead_are_not_fired_again_one_by_one(
    session: SessionParameters,
) -> None:
    instant = float(int(time.time()))
    async with opened(session) as (broker, connection):
        ticker = await ticker_on(connection, session, lambda: instant)
        await ticker.change(EntryChange.put(replace(entry(every=1.0, missed="all"), since=instant)))
        await broker.publish(message("first of its queue"))

        # A leader whose clock is ahead fires four ticks, and dies before it stores the entry's next state.
        (stored,) = await ticker.entries()
        fired, _ = stored.fired(instant + 4.0)
        for job in fired:
            await broker.publish(job)
        ticker._log.close()

        instant -= 180.0
        next_leader = await ticker_on(connection, session, lambda: instant)
        async with running(next_leader):
            await until(lambda: last_run(next_leader), None)
            for tick in range(1, 7):
                instant = stored.since + tick + 0.1
                await until(lambda: last_run(next_leader), stored.since + tick)
        ticks = [job.extra.get(TICK) for job in (await broker.browse("jobs", limit=100)).messages]
        assert ticks == [None, *(stored.since + tick for tick in range(1, 7))]


class OfWorker:
    """Answers as a worker that has these jobs; one of an earlier version answers about one job at a time."""

    def __init__(self, *jobs: str, earlier: bool = False) -> None:
        self._jobs = jobs
        self._earlier = earlier
        #: How many jobs each order was about.
        self.asked: list[int] = []

    async def __call__(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        self.asked.append(len(order.ids) or 1)
        if order.ids and not self._earlier:
            return {"known": [id for id in order.ids if id in self._jobs]}
        return {"state": "running"} if order.id in self._jobs else None


@asynccontextmanager
async def first_tick_of(
    session: SessionParameters, names: Sequence[str], workers: Callable[[Sequence[str]], Sequence[OfWorker]]
) -> AsyncIterator[set[str]]:
    """Let these entries have their first tick at once; gives the names of those that fired a job.

    `workers` gives what the workers have, by the ids of the jobs of that tick.
    """
    wall = Wall()
    async with opened(session) as (broker, connection):
        ticker = await ticker_on(connection, session, wall)
        for name in names:
            await ticker.change(EntryChange.put(entry(name, every=HOUR)))
        due = (await ticker.entries())[0].next or 0.0
        ids = [found.fired(due)[0][0].id for found in await ticker.entries()]
        async with AsyncExitStack() as stack:
            for number, worker in enumerate(workers(ids)):
                other, _ = await stack.enter_async_context(opened(session))
                await consume(other, "others", report=Report("others", pid=number + 1), on_command=worker)
            wall.ahead = due - time.time() + 0.5
            async with running(ticker):
                await until(lambda: fired_at(ticker), {due})
            yield {job.id.partition("@")[0] for job in (await broker.browse("jobs", limit=1_000)).messages}


async def fired_at(ticker: RecurringJobs) -> set[float | None]:
    return {found.last_run for found in await ticker.entries()}


async def test_workers_are_asked_once_about_all_jobs_of_a_tick(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_patience(monkeypatch)

    names = [f"sweep {number:03}" for number in range(300)]
    asked = list[OfWorker]()

    def workers(ids: Sequence[str]) -> Sequence[OfWorker]:
        asked[:] = [OfWorker(), OfWorker(ids[7])]
        return asked

    async with first_tick_of(session, names, workers) as fired:
        assert sorted(fired) == [name for name in names if name != "sweep 007"]
    assert [worker.asked for worker in asked] == [[300], [300]]


async def test_a_worker_of_an_earlier_version_is_asked_about_each_job(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_patience(monkeypatch)

    names = [f"sweep {number:03}" for number in range(50)]

    def workers(ids: Sequence[str]) -> Sequence[OfWorker]:
        return OfWorker(ids[3]), OfWorker(ids[30], earlier=True)

    async with first_tick_of(session, names, workers) as fired:
        assert sorted(fired) == [name for name in names if name not in ("sweep 003", "sweep 030")]


async def last_run(ticker: RecurringJobs) -> float | None:
    return (await ticker.entries())[0].last_run


async def test_an_entry_that_is_removed_or_disabled_just_before_its_tick_does_not_fire(
    session: SessionParameters,
) -> None:
    instant = time.time()
    async with opened(session) as (broker, connection):
        ticker = await ticker_on(connection, session, lambda: instant)
        async with running(ticker):
            for name in ("fires", "removed", "disabled"):
                await ticker.change(EntryChange.put(entry(name, every=HOUR)))
            due = (await ticker.entries())[0].next or 0.0
            instant = due - 1.0
            await until(lambda: ready(ticker), 3)
            await ticker.change(EntryChange.remove("removed"))
            await ticker.change(EntryChange.switch("disabled", on=False))
            instant = due + 0.1
            fired = await take_and_ack(await consume(broker))
            assert fired.extra["recurring"] == "fires"
            assert {found.name: found.last_run for found in await ticker.entries()} == {
                "fires": due,
                "disabled": None,
            }


async def test_entries_whose_queue_was_deleted_are_stored_anew_for_the_next_leader_too(
    session: SessionParameters, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(session) as (broker, connection):
        ticker = await ticker_on(connection, session, time.time)
        for name in ("a", "b"):
            await ticker.change(EntryChange.put(entry(name, every=seldom())))
        before = await ticker.entries()
        await connection.delete(internal(session.exchange, "recurring"))

        async def is_made_anew() -> bool:
            return await ticker.entries() == before and "was deleted" in caplog.text

        await until(is_made_anew, True)
    async with opened(session) as (broker, connection):
        assert await broker.recurring() == before


async def test_of_two_states_of_one_entry_the_newer_counts(session: SessionParameters) -> None:
    async with opened(session) as (broker, connection):
        await broker.change_recurring(EntryChange.put(entry(every=seldom())))
        (found,) = await broker.recurring()
        channel = await connection.channel()
        older = replace(found, version=found.version - 1, message=message("sweep", body=b"[0]"))
        newer = replace(found, version=found.version + 5, message=message("sweep", job="shop.sweep", body=b"[9]"))
        for state in (older, newer, newer):
            body = json.dumps(state.to_plain()).encode()
            channel.raw.basic_publish("", internal(session.exchange, "recurring"), body)
        await until(lambda: states(connection, session), 4)

        async with opened(session) as (keeper, _), time_kept(keeper):
            assert await broker.recurring() == [newer]
            await fire(broker, "sweep")
        assert (await take_and_ack(await consume(broker))).body == b"[9]"
        await until(lambda: states(connection, session), 1)


async def test_a_state_that_cannot_be_read_is_kept_and_keeps_nobody(
    session: SessionParameters, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(session) as (broker, connection):
        await broker.change_recurring(EntryChange.put(entry(every=seldom())))
        channel = await connection.channel()
        for body in (b"not JSON", b'{"from": "a later version"}'):
            channel.raw.basic_publish("", internal(session.exchange, "recurring"), body)
        await until(lambda: states(connection, session), 3)

        assert [found.name for found in await broker.recurring()] == ["sweep"]
        id = await fire(broker, "sweep")

        await until(lambda: ids(broker), [id])
        await until(lambda: states(connection, session), 3)
        assert "cannot be read" in caplog.text


async def test_a_recurring_job_whose_headers_do_not_fit_the_leaders_frames_fails_at_each_tick(
    session: SessionParameters,
) -> None:
    small = replace(session, address=replace(session.address, options=(("frame_max", "8192"),)))

    wall = Wall()
    async with opened(session) as (broker, _), opened(small) as (_, connection):
        ticker = await ticker_on(connection, small, wall)
        sent = {"extra": {"note": "n" * 20_000}}
        await ticker.change(EntryChange.put(entry("large", every=HOUR, sent=sent)))
        async with running(ticker):
            for number in (1, 2):
                due = (await ticker.entries())[0].next or 0.0
                wall.ahead = due - time.time() + 0.5
                await until(lambda: fired_at(ticker), {due})
                failed = (await broker.browse("failed")).messages
                assert len(failed) == number
                assert failed[-1].extra == {"recurring": "large", "tick": due, "dropped-headers": "note"}
                assert failed[-1].failure is not None
                assert failed[-1].failure.exception_class == "palermo.errors.HeadersTooLarge"
            assert await waiting(broker) == 0


async def states(connection: Connection, session: SessionParameters) -> int:
    """How many states lie in their queue, which nobody holds."""
    channel = await connection.channel()
    frame = await channel.call(channel.raw.queue_declare, internal(session.exchange, "recurring"), passive=True)
    await channel.close()
    return int(frame.method.message_count)
