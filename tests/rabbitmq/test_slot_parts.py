"""Crowded time slots: the leader divides their jobs early, reads each once, and shows each change."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import accumulate, repeat

import pytest

from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.leadership import time_duty
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.scheduling import slot_index, slot_parts
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import CANCEL, MOVE, RUN, ScheduledFilter
from palermo.core.message import Message
from palermo.core.time_slots import TimeSlot
from tests.contract.timing import DAY, by_id, due, listed, time_kept
from tests.contract.tools import ids, message, until
from tests.rabbitmq.conftest import Open, on_both_kinds

#: An instant some thirty hours from now, at the beginning of an hour: all jobs are due within five minutes of it.
TOMORROW = (time.time() + 1.25 * DAY) // 3_600 * 3_600

SLOT = TimeSlot(1, int(TOMORROW // 300))


@pytest.fixture
def other(broker: RabbitmqBroker) -> RabbitmqBroker:
    """The session that enqueues and looks; others lead."""
    return broker


@pytest.fixture
def divides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty jobs are a crowd, and its parts have eight."""
    monkeypatch.setattr(slot_parts, "PART", 8)
    monkeypatch.setattr(slot_parts, "CROWD", 20)
    monkeypatch.setattr(time_duty, "_COUNT_EVERY", 0.05)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the time slots that are read."""
    found, pages = list[str](), Reader.pages

    def noted(self: Reader, *args: object, **more: object) -> object:
        if "~later." in self._name:
            found.append(self._name.partition("~later.")[2])
        return pages(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "pages", noted)
    return found


def job(number: int, second: float, **more: str) -> Message:
    return message(f"job-{number}", run_at=TOMORROW + second, body=b'["x"]', **more)


def part(begins: float, length: float) -> TimeSlot:
    """The part of the time slot that begins so many seconds after it, and lasts so many."""
    shorter = accumulate(repeat(SLOT.begins + begins, 3), TimeSlot.next_part, initial=SLOT)
    return next(one for one in shorter if round(one.ends - one.begins) == length)


def divided(
    broker: RabbitmqBroker, slot: TimeSlot = SLOT, *, deep: int = 3, seconds: range = range(61)
) -> Callable[[], Awaitable[int]]:
    """Counts the jobs that the leader has moved into the time slot and its parts."""
    instants = (repeat(slot.begins + second, deep) for second in seconds)
    parts = {one for due in instants for one in accumulate(due, TimeSlot.next_part, initial=slot)}
    names = [delay_queue_name(broker._exchange, one) for one in parts]

    async def count() -> int:
        probes = await probe_all(broker._connection, names)
        return sum(probe.messages for probe in probes.values() if probe.exists)

    return count


async def test_a_slot_with_many_jobs_is_read_once_until_it_changes(
    another: Open, other: RabbitmqBroker, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_MESSAGES", 4)
    # The last one that is enqueued is due first.
    sent = [job(number, 60 - number, queue="odd" if number % 2 else "even") for number in range(20)]
    async with time_kept(leader := await another()):
        await other.publish_many(sent)
        for _ in range(2):
            page = await other.scheduled(ScheduledFilter(), limit=3)
            assert ([found.id for found in page.messages], page.total) == (["job-19", "job-18", "job-17"], 20)
            assert page.messages[0] == sent[19]
        chosen = await other.scheduled(ScheduledFilter(queue="o*"), limit=2)
        assert ([found.id for found in chosen.messages], chosen.total) == (["job-19", "job-17"], 10)
        assert await listed(other, by_id("job-18")) == ["job-18"]
        assert await listed(other, by_id("nobody")) == []
        assert len(read) == 1

        # Only the first four messages are kept; those of others are kept once they are shown.
        for _ in range(2):
            assert await listed(other, by_id("job-3")) == ["job-3"]
            assert await listed(leader, offset=15, limit=10) == [f"job-{number}" for number in range(4, -1, -1)]
        assert len(read) == 3

        # One job fewer and one more: other jobs of the same number.
        await other.alter_scheduled(by_id("job-19"), CANCEL)
        await other.publish(job(98, 42.5))
        assert await listed(other, limit=3) == ["job-18", "job-98", "job-17"]
        await other.alter_scheduled(by_id("job-10"), MOVE, at=TOMORROW + 1)
        assert await listed(other, limit=2) == ["job-10", "job-18"]


@pytest.mark.usefixtures("divides")
@on_both_kinds
async def test_a_crowd_is_divided_and_a_change_of_one_job_reads_its_part_alone(
    another: Open, other: RabbitmqBroker, read: list[str]
) -> None:
    async with time_kept(await another()):
        await other.publish_many([job(number, number) for number in range(30)])
        await until(divided(other), 30)
        assert await listed(other) == [f"job-{number}" for number in range(30)]
        assert read == [str(SLOT)]
        read.clear()

        [cancelled] = await other.alter_scheduled(by_id("job-12"), CANCEL)
        assert (cancelled.id, cancelled.run_at) == ("job-12", TOMORROW + 12)
        [_] = await other.alter_scheduled(by_id("job-20"), RUN)
        await until(lambda: ids(other), ["job-20"])
        assert await other.alter_scheduled(by_id("job-12"), CANCEL) == []
        assert len(read) == 2
        assert str(SLOT) not in read

        # These go into the time slot, and from there into a part.
        await other.alter_scheduled(by_id("job-29"), MOVE, at=TOMORROW + 0.5)
        await other.publish(job(99, 0.7))
        await until(lambda: listed(other, limit=4), ["job-0", "job-29", "job-99", "job-1"])
        assert len(await listed(other)) == 29


@pytest.mark.usefixtures("divides")
async def test_a_crowd_of_a_far_day_is_divided_too(another: Open, other: RabbitmqBroker) -> None:
    week = TimeSlot(SLOT.level, SLOT.index + 7 * 288)
    async with time_kept(await another()):
        await other.publish_many([job(number, 7 * DAY + number) for number in range(30)])
        await until(divided(other, week), 30)
        assert await listed(other, limit=3) == ["job-0", "job-1", "job-2"]


@pytest.mark.usefixtures("divides")
@on_both_kinds
async def test_a_new_leader_reads_the_parts_and_goes_on_filling_them(
    another: Open, other: RabbitmqBroker, read: list[str]
) -> None:
    async with time_kept(await another()):
        await other.publish_many([job(number, number) for number in range(30)])
        await until(divided(other), 30)
    read.clear()
    async with time_kept(await another()):

        async def are_read() -> bool:
            return str(SLOT) not in read and len(set(read)) == 4

        await until(are_read, True)  # before anybody looks
        await other.publish_many([job(number, 19 + number / 100) for number in range(30, 35)])
        await other.publish_many([job(number, number) for number in range(35, 60)])
        await until(divided(other), 60)
        order = [*range(20), *range(30, 35), *range(20, 30), *range(35, 60)]
        assert await listed(other) == [f"job-{number}" for number in order]


@pytest.mark.usefixtures("divides")
async def test_a_page_of_a_new_leader_without_indexes_reads_few_parts(
    another: Open, other: RabbitmqBroker, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_JOBS", 0)
    async with time_kept(await another()):
        await other.publish_many([job(number, 59 - number % 60 + number // 60 / 10) for number in range(240)])
        await until(divided(other), 240)
    read.clear()
    async with time_kept(await another()):
        page = await other.scheduled(ScheduledFilter(), limit=3)
        assert ([one.id for one in page.messages], page.total) == (["job-59", "job-119", "job-179"], 240)
        assert set(read) <= {str(SLOT)} | {str(part(0, length)) for length in (2, 10, 60)}

        everything = await listed(other, limit=240)
        read.clear()
        page = await other.scheduled(ScheduledFilter(), offset=120, limit=6)
        assert ([one.id for one in page.messages], page.total) == (everything[120:126], 240)
        before = {part(begins, 2) for begins in range(0, 20, 2)} | {part(0, 10), part(10, 10)}
        assert not set(read) & set(map(str, before))
        pages = [id for offset in range(0, 240, 7) for id in await listed(other, offset=offset, limit=7)]
        assert pages == everything


@pytest.mark.usefixtures("divides")
@on_both_kinds
async def test_the_pages_of_jobs_that_are_due_together_have_each_job_once(another: Open, other: RabbitmqBroker) -> None:
    async with time_kept(await another()):
        # A hundred in one millisecond, not all of them at its beginning.
        sent = [job(number, 7 + number % 3 / 10_000) for number in range(100)]
        await other.publish_many([*sent, job(100, 6), job(101, 8)])
        await until(divided(other, deep=20, seconds=range(6, 9)), 102)
        shown = [id for offset in range(0, 102, 7) for id in await listed(other, offset=offset, limit=7)]
        assert shown == await listed(other, limit=200)
        assert (shown[0], len(set(shown)), shown[-1]) == ("job-100", 102, "job-101")
        [_] = await other.alter_scheduled(by_id("job-57"), CANCEL)
        assert sorted([*await listed(other, limit=200), "job-57"]) == sorted(shown)


@on_both_kinds
async def test_a_leader_that_is_lost_while_it_divides_a_crowd_loses_no_job(
    another: Open, other: RabbitmqBroker, divides: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_parts, "PART", 200)
    first, moved = await another(), divided(other)
    leading = asyncio.ensure_future(first.run_scheduler())
    await other.publish_many([job(number, number / 100) for number in range(2_000)])

    async def is_dividing() -> bool:
        return await moved() > 0

    await until(is_dividing, True)
    first._connection.raw.abort()
    leading.cancel()
    await asyncio.wait({leading})
    async with time_kept(await another()):
        found = await listed(other, limit=5_000)
        assert set(found) == {f"job-{number}" for number in range(2_000)}
        # Those that were stored and not yet acknowledged are there twice.
        assert len(found) <= 2_100


@pytest.mark.usefixtures("divides")
@on_both_kinds
async def test_a_job_that_is_twice_in_a_crowd_is_cancelled_twice_and_moved_once(
    another: Open, other: RabbitmqBroker
) -> None:
    async with time_kept(await another()):
        await other.publish_many([job(number % 30, number % 30 + number // 30 / 100) for number in range(60)])
        await until(divided(other), 60)
        [_] = await other.alter_scheduled(by_id("job-12"), CANCEL)
        [_] = await other.alter_scheduled(by_id("job-29"), MOVE, at=TOMORROW - 1)
        left = [f"job-{number}" for number in range(29) if number != 12]
        assert await listed(other, limit=100) == ["job-29", *(one for one in left for _ in range(2))]


@on_both_kinds
async def test_jobs_of_parts_come_due_in_time(session: SessionParameters, another: Open, other: RabbitmqBroker) -> None:
    soon = [due(f"soon-{number}", 3.0) for number in range(10)]
    last = soon[-1].run_at or 0.0
    places = accumulate(
        [each.run_at or 0.0 for each in soon], TimeSlot.next_part, initial=TimeSlot(1, int(last // 300))
    )
    publisher = await other._outbox.open()
    for place, each in zip(list(places)[1:], soon, strict=True):
        await other._outbox.delay_queues.ensure(place)
        await publisher.send_job("", delay_queue_name(session.exchange, place), each)
    async with time_kept(await another()):
        await other.publish(message("first"))

        async def there() -> set[str]:
            return set(await ids(other))

        await until(there, {"first", *(each.id for each in soon)})
        assert time.time() >= last
