"""A crowded time slot: the leader divides its jobs, early and once, and knows each of them before anybody looks."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.messages import to_properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.leadership import time_duty
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues, delay_queue_name
from palermo.brokers.rabbitmq.scheduling import due_jobs, slot_index, slot_parts
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import CANCEL, MOVE, RUN, ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.time_slots import TimeSlot, time_slot_of
from tests.contract.timing import DAY, by_id, due, listed, time_kept
from tests.contract.tools import PATIENT, ids, message, until

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["classic", "quorum"])]

#: An instant some thirty hours from now, at the beginning of an hour: all jobs are due within five minutes of it.
TOMORROW = (time.time() + 1.25 * DAY) // 3_600 * 3_600

SLOT = TimeSlot(1, int(TOMORROW // 300))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty jobs are a crowd, and its parts have eight."""
    monkeypatch.setattr(slot_parts, "PART", 8)
    monkeypatch.setattr(slot_parts, "CROWD", 20)
    monkeypatch.setattr(time_duty, "_COUNT_EVERY", 0.05)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the time slots that are read."""
    found: list[str] = []
    pages = Reader.pages

    def noted(self: Reader, *args: object, **more: object) -> object:
        if "~later." in self._name:
            found.append(self._name.partition("~later.")[2])
        return pages(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "pages", noted)
    return found


@pytest.fixture
def session(rabbitmq_url: str, exchange: str, kind: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT, queue_type=kind)


@asynccontextmanager
async def opened(session: SessionParameters) -> AsyncIterator[RabbitmqBroker]:
    broker = await open_rabbitmq(session)
    try:
        yield broker
    finally:
        await broker.close()


def job(number: int, second: float, **more: str) -> Message:
    return message(f"job-{number}", run_at=TOMORROW + second, body=b'["x"]', **more)


async def lying(broker: RabbitmqBroker, session: SessionParameters, *, after: int = 0) -> dict[int, int]:
    """How many jobs lie in each part of the time slot, or of a later one; at -1 those that are not divided yet."""
    far = time_slot_of(TOMORROW + after, time.time())
    assert far is not None
    queues = {-1: far} | {part: TimeSlot(SLOT.level, SLOT.index + after // 300, part) for part in range(8)}
    found = {}
    for part, one in queues.items():
        probe = await broker._connection.probe(delay_queue_name(session.exchange, one))
        if probe.exists and probe.messages:
            found[part] = probe.messages
    return found


async def test_a_crowd_is_divided_and_a_look_reads_only_what_was_there_before_the_parts(
    session: SessionParameters, read: list[str]
) -> None:
    # The last one that is enqueued is due first.
    sent = [job(number, 60 - number, queue="odd" if number % 2 else "even") for number in range(30)]
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many(sent)
        await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 6})
        for _ in range(2):
            page = await other.scheduled(ScheduledFilter(), limit=3)
            assert ([found.id for found in page.messages], page.total) == (["job-29", "job-28", "job-27"], 30)
            assert page.messages[0] == sent[29]
            assert await listed(other, offset=24) == [f"job-{number}" for number in range(5, -1, -1)]
        chosen = await other.scheduled(ScheduledFilter(queue="o*"), limit=2)
        assert ([found.id for found in chosen.messages], chosen.total) == (["job-29", "job-27"], 15)
        assert await listed(other, by_id("nobody")) == []
        assert read == [str(SLOT)]


async def test_a_change_of_one_job_reads_its_part_alone(session: SessionParameters, read: list[str]) -> None:
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number, number) for number in range(30)])
        await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 6})
        assert len(await listed(other)) == 30
        read.clear()

        [cancelled] = await other.alter_scheduled(by_id("job-12"), CANCEL)
        assert (cancelled.id, cancelled.run_at) == ("job-12", TOMORROW + 12)
        [_] = await other.alter_scheduled(by_id("job-20"), RUN)
        await until(lambda: ids(other), ["job-20"])
        assert await other.alter_scheduled(by_id("job-12"), CANCEL) == []
        assert read == [str(TimeSlot(SLOT.level, SLOT.index, part)) for part in (1, 2)]

        # It goes into the time slot, and from there into a part.
        await other.alter_scheduled(by_id("job-29"), MOVE, at=TOMORROW + 0.5)
        await until(lambda: listed(other, limit=3), ["job-0", "job-29", "job-1"])
        assert len(await listed(other)) == 28


async def test_jobs_that_come_into_a_crowd_go_to_its_last_part_and_are_seen_at_once(
    session: SessionParameters, read: list[str]
) -> None:
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number, 10 + number) for number in range(30)])
        await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 6})

        await other.publish(job(99, 5))
        assert await listed(other, limit=2) == ["job-99", "job-0"]
        await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 7})
        read.clear()
        page = await other.scheduled(ScheduledFilter(), limit=2)
        assert ([found.id for found in page.messages], page.total) == (["job-99", "job-0"], 31)
        assert read == []


async def test_a_crowd_that_was_read_before_it_is_divided_drives_no_part_out_of_the_leaders_memory(
    session: SessionParameters, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_JOBS", 65)
    monkeypatch.setattr(due_jobs, "_BATCH", 8)
    hour = 3_600
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number, number) for number in range(30)])
        await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 6})
        monkeypatch.setattr(slot_parts, "CROWD", 1_000)
        await other.publish_many([job(number, hour + number) for number in range(30, 60)])
        assert await listed(other) == [f"job-{number}" for number in range(60)]

        # The leader has 60 jobs in its indexes, and moves 30 of them from one index to others.
        monkeypatch.setattr(slot_parts, "CROWD", 20)
        await until(lambda: lying(other, session, after=hour), {0: 8, 1: 8, 2: 8, 3: 6})
        read.clear()
        assert len(await listed(other)) == 60
        assert read == [str(TimeSlot(SLOT.level, SLOT.index + 12))]


async def test_a_new_leader_reads_the_parts_before_anybody_looks(session: SessionParameters, read: list[str]) -> None:
    async with opened(session) as first, opened(session) as second, opened(session) as other:
        async with time_kept(first):
            await other.publish_many([job(number, number) for number in range(30)])
            await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 6})
        read.clear()
        async with time_kept(second):

            async def parts_read() -> set[str]:
                return set(read)

            await until(parts_read, {str(TimeSlot(SLOT.level, SLOT.index, part)) for part in (1, 2, 3)})
            assert await listed(other) == [f"job-{number}" for number in range(30)]
            assert len(read) == 4

            # It fills none of the parts of the leader before.
            await other.publish_many([job(number, number) for number in range(30, 60)])
            await until(lambda: lying(other, session), {0: 8, 1: 8, 2: 8, 3: 6, 4: 8, 5: 8, 6: 8, 7: 6})
            assert await listed(other) == [f"job-{number}" for number in range(60)]


async def test_a_leader_that_is_lost_while_it_divides_a_crowd_loses_no_job(session: SessionParameters) -> None:
    async with opened(session) as first, opened(session) as second, opened(session) as other:
        leading = asyncio.ensure_future(first.run_scheduler())
        await other.publish_many([job(number, number / 100) for number in range(2_000)])

        async def divided() -> bool:
            return set(await lying(other, session)) > {-1, 0}

        await until(divided, True)
        first._connection.raw.abort()
        leading.cancel()
        await asyncio.wait({leading})
        async with time_kept(second):
            found = await listed(other, limit=5_000)
            assert set(found) == {f"job-{number}" for number in range(2_000)}
            # Those that were stored and not yet acknowledged are there twice.
            assert len(found) <= 2_100


async def test_jobs_of_a_part_come_due_in_time(session: SessionParameters) -> None:
    connection = await open_connection(session, "test")
    publisher = await Publisher.open(connection)

    async def ours() -> Publisher:
        return publisher

    try:
        soon = due("soon", 3.0)
        assert soon.run_at is not None
        part = TimeSlot(1, int(soon.run_at // 300), 2)
        await DelayQueues(session.exchange, connection, ours, {"x-queue-type": session.queue_type}).ensure(part)
        await publisher.send("", delay_queue_name(session.exchange, part), to_properties(soon), soon.body)
        async with opened(session) as leader, time_kept(leader):
            await leader.publish(message("first"))

            async def there() -> set[str]:
                return set(await ids(leader))

            await until(there, {"first", "soon"})
            assert time.time() >= soon.run_at
    finally:
        await connection.close()
