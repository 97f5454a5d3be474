"""Time slots, also with very many jobs: a look reads each once, and sees each change."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.brokers.rabbitmq.scheduling import slot_index
from palermo.brokers.rabbitmq.scheduling.scheduled_listing import ScheduledListing
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.scheduled import CANCEL, MOVE, RUN, ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.message import Message
from tests.contract.timing import DAY, by_id, listed, time_kept
from tests.contract.tools import PATIENT, ids, message, until


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an item for each reading of a time slot, of which four messages are kept."""
    monkeypatch.setattr(slot_index, "MOST_MESSAGES", 4)
    found: list[int] = []
    reading = ScheduledListing._read

    def counted(self, time_slot):  # type: ignore[no-untyped-def]
        found.append(1)
        return reading(self, time_slot)

    monkeypatch.setattr(ScheduledListing, "_read", counted)
    return found


@asynccontextmanager
async def led(rabbitmq_url: str, exchange: str) -> AsyncIterator[tuple[Broker, Broker]]:
    """A session that leads, and another one."""
    session = SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
    leader, other = await open_rabbitmq(session), await open_rabbitmq(session)
    try:
        async with time_kept(leader):
            yield leader, other
    finally:
        await leader.close()
        await other.close()


#: The first instant of an hour, some thirty hours from now.
TOMORROW = (time.time() + 1.25 * DAY) // 3_600 * 3_600


def job(number: int, second: float, **more: str) -> Message:
    return message(f"job-{number}", run_at=TOMORROW + second, body=b'["x"]', **more)


async def test_a_crowd_is_read_once_and_shows_its_pages_and_what_is_chosen(
    rabbitmq_url: str, exchange: str, read: list[int]
) -> None:
    # The last one that is enqueued is due first.
    sent = [job(number, 60 - number, queue="odd" if number % 2 else "even") for number in range(20)]
    async with led(rabbitmq_url, exchange) as (leader, other):
        await other.publish_many(sent)
        for _ in range(2):
            page = await other.scheduled(ScheduledFilter(), limit=3)
            assert ([found.id for found in page.messages], page.total) == (["job-19", "job-18", "job-17"], 20)
            assert page.messages[0] == sent[19]
        assert len(read) == 1

        chosen = await other.scheduled(ScheduledFilter(queue="o*"), limit=2)
        assert ([found.id for found in chosen.messages], chosen.total) == (["job-19", "job-17"], 10)
        assert await listed(other, by_id("job-18")) == ["job-18"]
        assert await listed(other, by_id("nobody")) == []
        assert len(read) == 1

        # Messages of these are not kept, but once they are shown.
        for _ in range(2):
            assert await listed(other, by_id("job-3")) == ["job-3"]
            assert await listed(leader, offset=15, limit=10) == [f"job-{number}" for number in range(4, -1, -1)]
        assert len(read) == 3


async def test_time_slots_with_few_jobs_are_read_once_and_the_farthest_keep_no_messages(
    rabbitmq_url: str, exchange: str, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_index, "MOST_KEPT", 5)
    sent = [job(number, 3_600 * number + 60, queue="odd" if number % 2 else "even") for number in range(8)]
    async with led(rabbitmq_url, exchange) as (_, other):
        await other.publish_many(sent)
        odd = ScheduledFilter(queue="odd")
        assert await listed(other, odd, limit=2) == ["job-1", "job-3"]
        assert len(read) == 8

        page = await other.scheduled(odd, limit=2)
        assert ([found.id for found in page.messages], page.total) == (["job-1", "job-3"], 4)
        assert await listed(other, limit=2) == ["job-0", "job-1"]
        assert await listed(other, ScheduledFilter(due=(TOMORROW, TOMORROW + 7_200))) == ["job-0", "job-1"]
        assert len(read) == 8

        # Only where a message is shown that is not kept, its own time slot is read.
        assert await listed(other, odd) == ["job-1", "job-3", "job-5", "job-7"]
        assert len(read) == 10

        await other.publish(job(9, 3_600 + 30, queue="odd"))
        assert await listed(other, odd, limit=2) == ["job-9", "job-1"]
        assert len(read) == 11


async def test_what_comes_into_a_crowd_or_leaves_it_is_seen_by_the_next_look(
    rabbitmq_url: str, exchange: str, read: list[int]
) -> None:
    async with led(rabbitmq_url, exchange) as (_, other):
        await other.publish_many([job(number, 10 + number) for number in range(20)])
        assert await listed(other, limit=2) == ["job-0", "job-1"]

        await other.publish(job(99, 5))
        assert await listed(other, limit=2) == ["job-99", "job-0"]
        assert len(read) == 2

        assert len(await other.alter_scheduled(by_id("job-99"), CANCEL)) == 1
        assert len(await other.alter_scheduled(by_id("job-1"), RUN)) == 1
        page = await other.scheduled(ScheduledFilter(), limit=2)
        assert ([found.id for found in page.messages], page.total) == (["job-0", "job-2"], 19)
        assert len(read) == 2
        await until(lambda: ids(other), ["job-1"])

        await other.alter_scheduled(by_id("job-10"), MOVE, at=TOMORROW + 1)
        page = await other.scheduled(ScheduledFilter(), limit=2)
        assert ([found.id for found in page.messages], page.total) == (["job-10", "job-0"], 19)

        # Of the same number of jobs as before, other ones.
        await other.alter_scheduled(by_id("job-0"), CANCEL)
        await other.publish(job(98, 2))
        assert await listed(other, limit=3) == ["job-10", "job-98", "job-2"]
