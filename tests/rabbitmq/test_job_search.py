"""Finding a job on RabbitMQ, which cannot look jobs up by id: the search is bounded, and says what it left out."""

import asyncio
from typing import Any

import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing import job_search
from palermo.client.status import locate
from palermo.contract.broker import Page
from palermo.core.topology import QUORUM
from tests.contract.browsing import states
from tests.contract.tools import ids, message, messages, put_into_failed, until
from tests.rabbitmq.conftest import Open


async def test_unsearched_places_are_named(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "DEPTH", 2)
    monkeypatch.setattr(job_search, "QUEUES", 1)
    await broker.publish_many([*messages(5), *messages(6, "other")])

    assert await states(broker, "jobs-0", "jobs-1", "jobs-2", "jobs-4") == ["pending", "pending", "", "pending"]
    middle, elsewhere = await locate(broker, "jobs-2", "jobs"), await locate(broker, "other-0")
    assert (middle.gone, middle.unseen) == (False, ("the middle of queue 'jobs', where 1 job waits",))
    assert (elsewhere.gone, "the 1 longest queues" in elsewhere.unseen) == (False, True)


async def test_a_long_queues_end_is_given_up_in_time(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "DEPTH", 2)
    monkeypatch.setattr(job_search, "_LONG", 5)
    await broker.publish_many(messages(6))
    assert await states(broker, "jobs-0", "jobs-5") == ["pending", "pending"]

    browse = broker.browse

    async def browse_for_ever(name: str, *, newest: bool = False, **more: Any) -> Page:
        page = await browse(name, newest=newest, **more)
        if newest:  # a broker that is quick has answered by now
            await asyncio.Event().wait()
        return page

    monkeypatch.setattr(job_search, "_READ_WITHIN", 0)
    monkeypatch.setattr(broker, "browse", browse_for_ever)

    assert await states(broker, "jobs-0", "jobs-5") == ["pending", ""]
    found = await locate(broker, "jobs-5", "jobs")
    assert found.unseen == ("queue 'jobs' behind its first 2 jobs, where 4 wait",)
    # The jobs that were being read are in their queue again.
    await until(lambda: ids(broker), [f"jobs-{number}" for number in range(6)])


async def test_a_failed_job_is_found_in_the_log(another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "FAILED", 2)
    broker = await another(queue_type=QUORUM)
    await put_into_failed(broker, messages(5))

    assert await states(broker, "jobs-4") == ["failed"]


async def test_unseen_failed_jobs_are_named(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "FAILED", 2)
    await put_into_failed(broker, messages(5))

    assert (await locate(broker, "jobs-4", "jobs")).unseen == ("3 failed jobs",)
    assert (await locate(broker, "nobody", "jobs", failed=False)).gone
    await broker.publish(message("waits"))
    assert await states(broker, "waits") == ["pending"]
