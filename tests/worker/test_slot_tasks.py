"""The slots of a worker in this process; the results of their jobs, and of jobs that another worker runs or ran."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.recorder import Recorder
from palermo.contract.broker import Broker, Delivery, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.journal_records import JournalLevel
from palermo.core.lifecycle import INTERRUPTED, SUCCEEDED, Raised
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from palermo.jobs.job_registry import Registry
from palermo.settings.settings import Settings
from palermo.testing.local_pool import LocalPool, LocalRun
from palermo.worker.options import WorkerOptions
from palermo.worker.parent import outcomes
from palermo.worker.parent.broker_session import BrokerSession
from palermo.worker.parent.job_events import JobEvents
from palermo.worker.parent.outcomes import AdoptedJobs, Adoption
from palermo.worker.parent.worker import Worker
from palermo.worker.registered import Registered
from palermo.worker.signals import Action
from tests.contract.tools import FAILURE, counts, message, messages, until
from tests.contract.workers import consume, take
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


class Sessions:
    """A session that nobody loses."""

    current: BrokerSession | None = None

    def lose(self, session: BrokerSession, error: Exception) -> None:
        raise error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(runner: asyncio.Runner, file: Path) -> Iterator[Broker]:
    broker = runner.run(open_broker(SessionParameters(address=parse_url(f"sqlite:///{file}"), exchange="palermo")))
    yield broker
    runner.run(broker.close())


#: Has the broker refuse every result that it would have to store.
REFUSE = "create trigger refuse before insert on job begin select raise(abort, 'no'); end"


def write(file: Path, statement: str) -> None:
    with sqlite3.connect(file, timeout=30) as db:
        db.execute(statement)
    db.close()


def answer(state: str, *, another: bool = False) -> Mapping[str, Any]:
    """The answer of a worker that runs message "1", or another message with this id, or that has run it."""
    mark = "another" if another else outcomes.fingerprint(message("1"))
    if state == "running":
        return {"state": state, "mark": mark}
    return outcomes.Outcome(
        job="j", queue="jobs", result=Raised(FAILURE) if state == "failed" else SUCCEEDED, mark=mark
    ).answer()


DONE_LATER = [answer("running"), answer("done", another=True)]


@pytest.mark.parametrize(
    ("worker", "answers", "adoption", "end"),
    [
        ("pid:1@example", [answer("done", another=True)], Adoption.NOT_RUNNING, "held"),
        ("pid:1@example", [answer("running", another=True)], Adoption.COPY, "held"),
        ("pid:1@example", DONE_LATER, Adoption.ADOPTED, "given back"),
        ("pid:9@gone", [], Adoption.ADOPTED, "given back"),
        ("pid:1@example", [answer("failed")] * 1_000, Adoption.ADOPTED, "failed"),
    ],
    ids=["another has ended", "another runs", "another ends later", "no answer", "refused at first"],
)
async def test_a_job_ends_with_the_result_of_its_own_worker_or_runs_again(
    broker: Broker,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    worker: str,
    answers: list[Any],
    adoption: Adoption,
    end: str,
) -> None:
    monkeypatch.setattr(outcomes, "_ASK_EVERY", 0.01)

    await broker.publish(message("1"))
    consumer: Any = await consume(broker)
    sessions, left = Sessions(), iter(answers)
    sessions.current = BrokerSession(broker, consumer)
    adopted = AdoptedJobs(
        "pid:1@example",
        sessions=sessions,  # type: ignore[arg-type]
        stopping=asyncio.Event(),
        job_events=JobEvents(Recorder(JournalLevel.OFF, "w")),
        failed_per_queue=False,
        own_outcome=lambda _: next(left),
    )
    write(file, REFUSE)

    delivery = replace(await take(consumer), running_at=worker)
    assert await adopted.adopt(sessions.current, delivery) is adoption

    await asyncio.sleep(0.1)
    write(file, "drop trigger refuse")
    if end == "given back":
        assert (await take(consumer)).redelivered
    elif end == "failed":
        await until(lambda: counts(broker, "failed"), (1, 0))
    adopted.close()
