"""A crowded time slot: the leader divides its jobs, early and once, by when they are due."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import accumulate, repeat
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
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

pytestmark = pytest.mark.parametrize("kind", ["classic", "quorum"])

#: An instant some thirty hours from now, at the beginning of an hour: all jobs are due within five minutes of it.
TOMORROW = (time.time() + 1.25 * DAY) // 3_600 * 3_600

SLOT = TimeSlot(1, int(TOMORROW // 300))

#: Where thirty jobs lie that are due one second after another: how many, by the beginning and the length of the part.
THIRTY = {(0, 300): 8, (0, 60): 8, (10, 10): 4, (20, 10): 8, (28, 2): 2}


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


@asynccontextmanager
async def filled(session: SessionParameters) -> AsyncIterator[Callable[[TimeSlot, Message], Awaitable[None]]]:
    """What puts a job into the queue of a time slot or of a part, as the leader before did."""
    connection = await open_connection(session, "test")
    publisher = await Publisher.open(connection)

    async def ours() -> Publisher:
        return publisher

    queues = DelayQueues(session.exchange, connection, ours, {"x-queue-type": session.queue_type})

    async def put(place: TimeSlot, one: Message) -> None:
        await queues.ensure(place)
        await publisher.send("", delay_queue_name(session.exchange, place), to_properties(one), one.body)

    try:
        yield put
    finally:
        await connection.close()


def job(number: int, second: float, **more: str) -> Message:
    return message(f"job-{number}", run_at=TOMORROW + second, body=b'["x"]', **more)


def part(begins: float, length: float) -> TimeSlot:
    """The part of the time slot that begins so many seconds after it, and lasts so many."""
    shorter = accumulate(repeat(SLOT.begins + begins, 3), TimeSlot.next_part, initial=SLOT)
    return next(one for one in shorter if round(one.ends - one.begins) == length)


async def lying(
    broker: RabbitmqBroker,
    session: SessionParameters,
    slot: TimeSlot = SLOT,
    *,
    seconds: Iterable[int] = range(61),
    deep: int = 3,
) -> dict[tuple[float, float], int]:
    """How many jobs of these seconds lie in the time slot and its parts, and where they are before the division.

    By when each begins after the slot, and how long it lasts, in seconds. `deep` is how many parts hold one another.
    """
    far = time_slot_of(slot.begins, time.time())
    assert far is not None
    instants = [slot.begins + second for second in seconds]
    found = dict[tuple[float, float], int]()
    places = {far, slot}
    for _ in range(deep + 1):
        names = {delay_queue_name(session.exchange, one): one for one in places}
        probes = await probe_all(broker._connection, names)
        there = {names[name]: probe.messages for name, probe in probes.items() if probe.exists}
        for one, count in there.items():
            times = round(one.begins - slot.begins, 3), round(one.ends - one.begins, 3)
            found[times] = found.get(times, 0) + count
        within = ((one, due) for one in there if one != far for due in instants if one.begins <= due < one.ends)
        places = {one.next_part(due) for one, due in within}
    return {times: count for times, count in found.items() if count}


async def divided(broker: RabbitmqBroker, session: SessionParameters, slot: TimeSlot = SLOT, **more: Any) -> int:
    """How many jobs the leader has moved into the time slot and its parts; `more` is for `lying`."""
    found = await lying(broker, session, slot, **more)
    return sum(count for (_, length), count in found.items() if length < 3_600)


async def test_a_crowd_is_divided_and_a_look_reads_only_what_was_there_before_the_parts(
    session: SessionParameters, read: list[str]
) -> None:
    # The last one that is enqueued is due first.
    sent = [job(number, 60 - number, queue="odd" if number % 2 else "even") for number in range(30)]
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many(sent)
        parts = {(0, 300): 8, (0, 60): 8, (30, 10): 8, (30, 2): 1, (40, 10): 5}
        await until(lambda: lying(other, session), parts)
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
        await until(lambda: lying(other, session), THIRTY)
        assert len(await listed(other)) == 30
        read.clear()

        [cancelled] = await other.alter_scheduled(by_id("job-12"), CANCEL)
        assert (cancelled.id, cancelled.run_at) == ("job-12", TOMORROW + 12)
        [_] = await other.alter_scheduled(by_id("job-20"), RUN)
        await until(lambda: ids(other), ["job-20"])
        assert await other.alter_scheduled(by_id("job-12"), CANCEL) == []
        assert read == [str(part(0, 60)), str(part(20, 10))]

        # It goes into the time slot, and from there into a part.
        await other.alter_scheduled(by_id("job-29"), MOVE, at=TOMORROW + 0.5)
        await until(lambda: listed(other, limit=3), ["job-0", "job-29", "job-1"])
        assert len(await listed(other)) == 28


async def test_jobs_that_come_into_a_crowd_go_into_a_part_and_are_seen_at_once(
    session: SessionParameters, read: list[str]
) -> None:
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number, number) for number in range(30)])
        await until(lambda: lying(other, session), THIRTY)

        await other.publish(job(99, 0.5))
        assert await listed(other, limit=2) == ["job-0", "job-99"]
        await until(lambda: lying(other, session), THIRTY | {(0, 10): 1})
        read.clear()
        page = await other.scheduled(ScheduledFilter(), limit=2)
        assert ([found.id for found in page.messages], page.total) == (["job-0", "job-99"], 31)
        assert read == []


async def test_a_crowd_of_a_far_day_is_divided_too(session: SessionParameters) -> None:
    week = TimeSlot(SLOT.level, SLOT.index + 7 * 288)
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number, 7 * DAY + number) for number in range(30)])
        await until(lambda: lying(other, session, week), THIRTY)
        assert await listed(other, limit=3) == ["job-0", "job-1", "job-2"]


async def test_a_crowd_that_was_read_before_it_is_divided_drives_no_part_out_of_the_leaders_memory(
    session: SessionParameters, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_JOBS", 65)
    monkeypatch.setattr(due_jobs, "_BATCH", 8)
    later = TimeSlot(SLOT.level, SLOT.index + 12)
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number, number) for number in range(30)])
        await until(lambda: lying(other, session), THIRTY)
        monkeypatch.setattr(slot_parts, "CROWD", 1_000)
        await other.publish_many([job(30 + number, 3_600 + number) for number in range(30)])
        assert await listed(other) == [f"job-{number}" for number in range(60)]

        # The leader has 60 jobs in its indexes, and moves 30 of them from one index to others.
        monkeypatch.setattr(slot_parts, "CROWD", 20)
        # A quorum queue hands out what was read in another order, so other jobs go into other parts.
        await until(lambda: divided(other, session, later), 30)
        read.clear()
        assert len(await listed(other)) == 60
        assert read == [str(later)]


async def test_a_new_leader_reads_the_parts_before_anybody_looks_and_goes_on_filling_them(
    session: SessionParameters, read: list[str]
) -> None:
    async with opened(session) as first, opened(session) as second, opened(session) as other:
        async with time_kept(first):
            await other.publish_many([job(number, number) for number in range(30)])
            await until(lambda: lying(other, session), THIRTY)
        read.clear()
        async with time_kept(second):

            async def parts_read() -> set[str]:
                return set(read)

            parts = THIRTY.keys() - {(0, 300)}
            await until(parts_read, {str(part(*one)) for one in parts})
            assert await listed(other) == [f"job-{number}" for number in range(30)]
            assert len(read) == 5

            # Four more have room in their part.
            await other.publish_many([job(number, 19 + number / 100) for number in range(30, 35)])
            await other.publish_many([job(number, number) for number in range(35, 60)])
            more = {(10, 10): 8, (18, 2): 1, (30, 10): 5, (40, 10): 8, (48, 2): 2, (50, 10): 8, (58, 2): 2}
            await until(lambda: lying(other, session), THIRTY | more)
            order = [*range(20), *range(30, 35), *range(20, 30), *range(35, 60)]
            assert await listed(other) == [f"job-{number}" for number in order]


async def test_a_first_page_of_a_new_leader_without_indexes_reads_only_the_first_parts(
    session: SessionParameters, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_JOBS", 0)
    async with opened(session) as first, opened(session) as second, opened(session) as other:
        async with time_kept(first):
            await other.publish_many([job(number, 59 - number % 60) for number in range(240)])
            await until(lambda: divided(other, session), 240)
        read.clear()
        async with time_kept(second):
            page = await other.scheduled(ScheduledFilter(), limit=3)
            found = [(TOMORROW + one, 240) for one in (0, 0, 0)]
            assert [(one.run_at, page.total) for one in page.messages] == found
            assert set(read) <= {str(SLOT)} | {str(part(0, length)) for length in (2, 10, 60)}


async def test_a_page_half_way_of_a_new_leader_without_indexes_reads_no_part_before_it(
    session: SessionParameters, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_JOBS", 0)
    async with opened(session) as first, opened(session) as second, opened(session) as other:
        async with time_kept(first):
            await other.publish_many([job(number, 59 - number % 60 + number // 60 / 10) for number in range(240)])
            await until(lambda: divided(other, session), 240)
        async with time_kept(second):
            everything = await listed(other, limit=240)
            read.clear()
            page = await other.scheduled(ScheduledFilter(), offset=120, limit=6)
            assert [(one.id, page.total) for one in page.messages] == [(id, 240) for id in everything[120:126]]
            assert page.messages[-1].run_at == job(88, 31.1).run_at
            before = {part(begins, 2) for begins in range(0, 20, 2)} | {part(0, 10), part(10, 10)}
            assert not set(read) & set(map(str, before))
            read.clear()
            pages = [id for offset in range(0, 240, 7) for id in await listed(other, offset=offset, limit=7)]
            assert pages == everything


async def test_the_pages_of_jobs_that_are_due_together_have_each_job_once(
    session: SessionParameters, read: list[str]
) -> None:
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        # A hundred in one millisecond, not all of them at its beginning.
        sent = [job(number, 7 + number % 3 / 10_000) for number in range(100)]
        await other.publish_many([*sent, job(100, 6), job(101, 8)])
        await until(lambda: divided(other, session, seconds=(6, 7, 8), deep=20), 102)
        assert (await listed(other, limit=3))[0] == "job-100"
        assert read == [str(SLOT)]
        shown = [id for offset in range(0, 102, 7) for id in await listed(other, offset=offset, limit=7)]
        assert shown == await listed(other, limit=200)
        assert (shown[0], len(set(shown)), shown[-1]) == ("job-100", 102, "job-101")
        [_] = await other.alter_scheduled(by_id("job-57"), CANCEL)
        assert sorted([*await listed(other, limit=200), "job-57"]) == sorted(shown)


async def test_a_leader_that_is_lost_while_it_divides_a_crowd_loses_no_job(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_parts, "PART", 200)
    async with opened(session) as first, opened(session) as second, opened(session) as other:
        leading = asyncio.ensure_future(first.run_scheduler())
        await other.publish_many([job(number, number / 100) for number in range(2_000)])

        async def is_dividing() -> bool:
            return set(await lying(other, session)) > {(0, 300), (0, 3_600)}

        await until(is_dividing, True)
        first._connection.raw.abort()
        leading.cancel()
        await asyncio.wait({leading})
        async with time_kept(second):
            found = await listed(other, limit=5_000)
            assert set(found) == {f"job-{number}" for number in range(2_000)}
            # Those that were stored and not yet acknowledged are there twice.
            assert len(found) <= 2_100


async def test_a_job_that_is_twice_in_a_crowd_is_cancelled_twice_and_moved_once(session: SessionParameters) -> None:
    async with opened(session) as leader, opened(session) as other, time_kept(leader):
        await other.publish_many([job(number % 30, number % 30 + number // 30 / 100) for number in range(60)])
        await until(lambda: divided(other, session), 60)
        [_] = await other.alter_scheduled(by_id("job-12"), CANCEL)
        [_] = await other.alter_scheduled(by_id("job-29"), MOVE, at=TOMORROW - 1)
        left = [f"job-{number}" for number in range(29) if number != 12]
        assert await listed(other, limit=100) == ["job-29", *(one for one in left for _ in range(2))]


async def test_parts_that_an_earlier_version_has_counted_are_read_with_their_slot(
    session: SessionParameters, read: list[str]
) -> None:
    last = part(290, 10).part
    async with opened(session) as leader, opened(session) as other, filled(session) as put:
        # The soonest jobs are in the parts with the highest numbers.
        counted = [TimeSlot(SLOT.level, SLOT.index, number) for number in (1, 2, last + 1, last + 2)]
        for number, one in enumerate(counted):
            for second in range(5):
                await put(one, job(number * 5 + second, 20 - number * 5 - second))
        await put(part(290, 10), job(99, 290))
        async with time_kept(leader):
            assert await listed(other, limit=3) == ["job-19", "job-18", "job-17"]
            assert set(read) >= {str(one) for one in counted}
            await other.publish_many([job(100 + number, 30 + number) for number in range(30)])
            parts = {(0, 300): 8, (0, 60): 8, (40, 10): 4, (50, 10): 8, (58, 2): 2}
            await until(lambda: lying(other, session, seconds=range(30, 61)), parts)
            order = [*range(19, -1, -1), *range(100, 130), 99]
            assert await listed(other, limit=100) == [f"job-{number}" for number in order]


async def test_jobs_of_parts_come_due_in_time(session: SessionParameters) -> None:
    soon = [due(f"soon-{number}", 3.0) for number in range(12)]
    last = soon[-1].run_at
    assert last is not None
    slot = TimeSlot(1, int(last // 300))
    places = list(accumulate([each.run_at or 0.0 for each in soon[:10]], TimeSlot.next_part, initial=slot))[1:]
    # Two that an earlier version has counted, after a part of the slot's end.
    ends = slot.next_part(slot.ends - 1).part
    places += [TimeSlot(1, slot.index, ends + number) for number in (1, 2)]
    async with opened(session) as leader, filled(session) as put:
        for place, each in zip(places, soon, strict=True):
            await put(place, each)
        async with time_kept(leader):
            await leader.publish(message("first"))

            async def there() -> set[str]:
                return set(await ids(leader))

            await until(there, {"first", *(each.id for each in soon)})
            assert time.time() >= last
