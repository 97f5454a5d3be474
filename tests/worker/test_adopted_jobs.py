"""The results of adopted jobs, which another worker runs or has run."""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.recorder import Recorder
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.journal_records import JournalLevel
from palermo.core.lifecycle import SUCCEEDED, Raised
from palermo.worker.parent import outcomes
from palermo.worker.parent.broker_session import BrokerSession
from palermo.worker.parent.job_events import JobEvents
from palermo.worker.parent.outcomes import AdoptedJobs, Adoption
from tests.contract.tools import FAILURE, counts, message, until
from tests.contract.workers import consume, take


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
