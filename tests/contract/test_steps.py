"""SQLite and Redis change data only as long as it is as it was read, and remove only jobs that still wait."""

import asyncio
import time
from typing import Any

import pytest

from palermo.brokers.features.steps import Job, Refused, Step, StepStore, text_of, unchanged
from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.sqlite.broker import SqliteBroker
from palermo.contract.broker import Broker
from palermo.contract.scheduled import RUN, ScheduledFilter
from tests.contract.tools import consume, counts, ids, message, messages, take


@pytest.fixture(params=["broker", "redis_broker"], ids=["sqlite", "redis"])
def either(runner: asyncio.Runner, request: pytest.FixtureRequest) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    return broker


def steps_of(broker: Broker) -> StepStore:
    assert isinstance(broker, SqliteBroker | RedisBroker)
    return broker._steps if isinstance(broker, SqliteBroker) else broker._store


async def read_first(steps: StepStore) -> tuple[str, Any]:
    """The place and the number of the first job in the queue, as a sweep reads them."""
    extent = await steps.extent("jobs")
    part = await steps.part("jobs", extent.places[0], None, extent.last, ())
    return extent.places[0], part.jobs[0][1]


@pytest.mark.parametrize("read", [None, "older"])
async def test_a_change_to_what_another_has_changed_is_refused(either: Broker, read: str | None) -> None:
    steps = steps_of(either)

    def write(state: str) -> list[Step]:
        return [("set", "limits", "key", state)]

    if read is not None:
        await steps.change((), write(read))
    as_read = [unchanged("limits", "key", *await steps.states("limits", ["key"]))]
    await steps.change(as_read, write("newer"))

    with pytest.raises(Refused):
        await steps.change(as_read, write("lost"))

    (state,) = await steps.states("limits", ["key"])
    assert state is not None
    assert text_of(state) == "newer"


async def test_a_job_that_was_taken_is_neither_removed_nor_moved(either: Broker) -> None:
    steps = steps_of(either)
    await either.publish_many(messages(2))
    place, number = await read_first(steps)
    held = await take(await consume(either))

    for replacement in (False, Job(message("copy"))):
        removal = ("remove", "jobs", place, number, replacement)
        assert await steps.change((), [removal]) == [0]
        assert (await steps.try_change([("waits", "jobs", place, number)], [removal])).failed == 1

    assert held.message.id == "jobs-0"
    assert await ids(either) == ["jobs-1"]
    assert await counts(either) == (1, 1)


async def test_a_job_that_came_due_is_neither_cancelled_nor_put_off(either: Broker) -> None:
    steps = steps_of(either)
    await either.publish(message("due", run_at=time.time() + 3_600))
    ((number, _),) = [one async for one in steps.later(ScheduledFilter())]
    await either.alter_scheduled(ScheduledFilter(), RUN)
    assert await ids(either) == ["due"]

    for replacement in (False, Job(message("copy"))):
        removal = ("remove_later", number, replacement)
        assert await steps.change((), [removal]) == [0]
        assert (await steps.try_change([("scheduled", number)], [removal])).failed == 1

    assert await ids(either) == ["due"]
