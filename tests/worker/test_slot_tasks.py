"""The slots of a worker in this process, whose jobs end when the test says so."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from palermo.contract.broker import Delivery, open_broker
from palermo.core.lifecycle import INTERRUPTED, SUCCEEDED
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from palermo.jobs.job_registry import Registry
from palermo.settings.settings import Settings
from palermo.testing.local_pool import LocalPool, LocalRun
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.worker import Worker
from palermo.worker.registered import Registered
from palermo.worker.signals import Action
from tests.contract.tools import messages, until
from tests.worker.bench import Bench


@asynccontextmanager
async def working(folder: Path) -> AsyncIterator[tuple[Worker, LocalPool, list[LocalRun]]]:
    """A worker with one slot and two jobs, its pool, and the runs that it has begun: the first one."""
    settings = Settings(url=f"sqlite:///{folder}/jobs.db")
    broker = await open_broker(settings.session("client"))
    await broker.publish_many(messages(2))
    registered = Registered(jobs=(), queues=("jobs",), hooks=frozenset())
    runs: list[LocalRun] = []
    pool = LocalPool(
        lambda *_: Bench().executor(), Registry(), registered, hand_over=runs.append, failed=lambda failures: None
    )
    options = WorkerOptions(settings=settings, modules=("m",), queues=QueueSelection.parse("jobs"), scheduler=False)
    worker = Worker(options, pool, registered, host="h", pid=os.getpid(), show_title=lambda title: None)
    working = asyncio.ensure_future(worker.run())
    await until(lambda: len(runs), 1)
    try:
        yield worker, pool, runs
    finally:
        worker.order(Action.ABANDON)
        await working
        await broker.close()


async def test_a_job_that_ends_as_its_worker_pauses_is_the_last(tmp_path: Path) -> None:
    async with working(tmp_path) as (worker, pool, runs):
        session: Any = worker.shared.sessions.current
        pool.end(runs[0], SUCCEEDED)
        worker.order(Action.PAUSE)
        # In the same turn of the loop a broker may still offer a job, as RabbitMQ does if there are several queues.
        assert not session.consumer._takes[1](Delivery(message=runs[0].message, slot=1))

        await until(lambda: worker.state, "paused")
        await asyncio.sleep(0.1)
        assert len(runs) == 1
        worker.order(Action.RESUME)
        await until(lambda: [run.message.id for run in runs], ["jobs-0", "jobs-1"])


async def test_a_worker_that_is_resumed_as_it_pauses_goes_on_taking_jobs(tmp_path: Path) -> None:
    async with working(tmp_path) as (worker, pool, runs):
        for count in (1, 2):
            await until(lambda: len(runs), count)
            pool.end(runs[-1], SUCCEEDED)
        await until(lambda: worker.state, "idle")
        worker.order(Action.PAUSE)
        worker.order(Action.RESUME)

        await asyncio.sleep(0.1)
        await until(lambda: [slot.waiting for slot in worker._slots], [True])


async def test_a_job_whose_session_was_lost_frees_its_slot(tmp_path: Path) -> None:
    async with working(tmp_path) as (worker, pool, runs):
        sessions = worker.shared.sessions
        assert sessions.current is not None
        sessions.lose(sessions.current, BrokerUnavailable("lost"))
        await sessions.available.wait()

        pool.end(runs[0], INTERRUPTED)

        await until(lambda: len(runs), 2)
