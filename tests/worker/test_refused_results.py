"""The results that a worker keeps since the broker refuses to store them: how many, and what the next one does."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.lifecycle import Fail, Raised, fail
from palermo.errors import PalermoError
from palermo.worker.parent.broker_session import BrokerSession
from palermo.worker.parent.outcomes import MAX_BYTES, MAX_RESULTS, Outcome, Outcomes, RefusedResult, RefusedResults
from tests.contract.tools import FAILURE, ids, message, until
from tests.contract.workers import consume, take


class Sessions:
    """A session that nobody loses."""

    def lose(self, session: BrokerSession, error: Exception) -> None:
        raise error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def run_on(file: Path, work: Callable[[Broker], Awaitable[None]]) -> None:
    async def go() -> None:
        broker = await open_broker(SessionParameters(address=parse_url(f"sqlite:///{file}"), exchange="palermo"))
        try:
            async with asyncio.timeout(120):
                await work(broker)
        finally:
            await broker.close()

    asyncio.run(go())


def write(file: Path, statement: str) -> None:
    with sqlite3.connect(file, timeout=30) as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("size", "most"), [(10, MAX_RESULTS), (MAX_BYTES // 4, 4)], ids=["so many jobs", "so many bytes of bodies"]
)
def test_a_worker_that_keeps_as_many_results_as_it_may_takes_no_more_jobs(file: Path, size: int, most: int) -> None:
    async def work(broker: Broker) -> None:
        sessions: Any = Sessions()
        refused_results = RefusedResults(sessions, Outcomes(), asyncio.Event())
        stored: list[bool] = []
        body = b"x" * size
        await broker.publish_many(message(f"{number}", body=body) for number in range(most + 1))
        consumer = await consume(broker)
        write(file, "create trigger refuse before insert on job begin select raise(abort, 'no'); end")

        async def end_next() -> None:
            delivery = await take(consumer)
            settlement = Fail(fail(delivery.message, FAILURE, worker="w"), "failed")
            with pytest.raises(PalermoError) as refused:
                await consumer.settle(delivery, settlement)
            session = BrokerSession(broker, consumer)
            outcome = Outcome(job="j", queue="q", result=Raised(FAILURE))
            one = RefusedResult(session, delivery, outcome, settlement, stored.append)
            await refused_results.keep(one, refused.value, companion=False)

        for _ in range(most):
            await end_next()
        assert not stored
        last = asyncio.ensure_future(end_next())
        done, _ = await asyncio.wait({last}, timeout=1.5)
        assert not done
        write(file, "drop trigger refuse")
        refused_results.try_all_now()
        await last
        await refused_results.wait()
        assert stored == [True] * (most + 1)
        await until(lambda: _count(broker), most + 1)

    run_on(file, work)


async def _count(broker: Broker) -> int:
    return len(await ids(broker, "failed"))
