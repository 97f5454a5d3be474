"""One story of an operator on each broker; the contract holds the brokers to the same answers in detail."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.errors import NotFound, PalermoError
from palermo.inspector.doctor import examine
from palermo.inspector.inspector import Inspector
from palermo.inspector.judges import TakenJob
from palermo.settings.settings import Settings
from tests.helpers import eventually
from tests.inspector.jobs import message, publish, publish_many_failed
from tests.scale import scaled
from tests.webui.scheduled_jobs import due


@pytest.fixture
def settings(any_settings: Settings) -> Settings:
    return any_settings


@pytest.mark.slow
@pytest.mark.parametrize("any_settings", ["sqlite"], indirect=True)
def test_a_worker_is_started_seen_paused_and_stopped(client: Client, inspector: Inspector) -> None:
    worker = inspector.workers.start(["palermo.demo.jobs"], queues="mail")
    try:
        row = eventually(lambda: next((row for row in inspector.workers.list() if row["answers"]), None))
        assert (row["pid"], row["queues"]) == (worker.pid, ["mail"])
        inspector.queues.pause("mail")
        eventually(lambda: {row["name"]: row["paused"] for row in inspector.queues.list()}["mail"])
        assert inspector.workers.stop(worker) == 0
        eventually(lambda: inspector.workers.list() == [])
        with pytest.raises(NotFound, match=f"no worker '{row['id']}' is running; `palermo workers` lists the workers"):
            inspector.workers.stop(row["id"])
    finally:
        worker.stop()


def test_the_doctor_warns_of_a_due_job_that_no_worker_moves(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palermo.inspector.problems.DUE", 0.0)
    publish(client, message("m1"))  # connects
    publish(client, due("s1", 1.0))

    said = eventually(lambda: "no worker moves it" in (text := str(examine(client, []))) and text)

    assert "`palermo worker MODULE`" in said
    assert "no job is late" not in said


def test_two_operators_and_the_journal_report_each_job_once(
    client: Client, inspector: Inspector, settings: Settings
) -> None:
    """One begins first, but the other moves some of the jobs before the first has discarded them, if it can."""
    chosen = ["0", "1", "2", "3"]
    publish(client, *map(message, chosen))
    moved, errors, other_errors = list[TakenJob](), list[PalermoError](), list[PalermoError]()
    begun: list[bool] = []
    with Client(settings) as another:

        def other_first() -> bool:
            if not begun:
                begun.append(True)
                moved.extend(Inspector(another).jobs.move("mail", chosen[1:3], "b", on_error=other_errors.append))
            return False

        discarded = inspector.jobs.discard("mail", chosen, stop=other_first, on_error=errors.append)

    took, other_took = [job.id for job in discarded], [job.id for job in moved]
    assert sorted(took + other_took) == chosen
    assert [(type(error), error.jobs) for error in errors] == ([(NotFound, 2)] if moved else [])
    assert [(type(error), error.jobs) for error in other_errors] == ([] if moved else [(NotFound, 2)])
    records = eventually(lambda: len(found := list(inspector.history.audit())) == 2 and found)
    recorded = {row["action"]: (row["outcome"], row["ids"]) for row in records}
    assert recorded["discard"] == ("done", took)
    assert recorded["move"] == (("done", other_took) if moved else ("failed", chosen[1:3]))


# -- killed half way

COUNT = scaled(1_000, 3_000)
REQUEUE = [str(Path(sys.executable).with_name("palermo")), "failed", "requeue", "--all", "--yes"]


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    """Of another program on the same broker."""
    given = {"PALERMO_URL": settings.url, "PALERMO_EXCHANGE": settings.exchange, "PALERMO_PUBLISH_TIMEOUT": "30"}
    return {**os.environ, **given}


@pytest.mark.slow
@pytest.mark.parametrize("any_settings", ["sqlite"], indirect=True)
def test_an_interrupted_requeue_says_how_many_it_moved(
    client: Client, inspector: Inspector, environment: dict[str, str], tmp_path: Path
) -> None:
    publish_many_failed(client, COUNT)
    with subprocess.Popen(REQUEUE, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as requeue:
        eventually(lambda: waiting(inspector) > 0, every=0.005)
        requeue.send_signal(signal.SIGINT)
        told, _ = requeue.communicate()

    moved, left = waiting(inspector), inspector.queues.size("failed")
    assert moved + left == COUNT
    assert told == f"requeued {moved:,} jobs.\n"
    assert left == 0 or requeue.returncode == 130


#: Edits the job "a", and dies of SIGKILL between the publish of the changed job and the end of the old one. On Redis
#: there is nothing between: it dies before it hears that both are done.
_EDIT_AND_DIE = """
import os, signal
from palermo.brokers.rabbitmq.browsing import sweep
from palermo.brokers.redis.store import Store
from palermo.brokers.sqlite import steps
from palermo.client.client import Client
from palermo.inspector.inspector import Inspector

insert, change = steps.insert, Store.change

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def insert_and_die(*given):
    insert(*given)
    die()

async def change_and_die(*given):
    await change(*given)
    die()

sweep._ack = die
Store.change = change_and_die
steps.insert = insert_and_die
Inspector(Client()).jobs.edit("a", args=["new"], waits_in="mail")
"""


@pytest.mark.slow
def test_an_edit_that_is_killed_half_way_loses_nothing(
    client: Client, inspector: Inspector, settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    publish(client, *(message(id, "old") for id in ("first", "a", "last")))
    edit = subprocess.run([sys.executable, "-c", _EDIT_AND_DIE], env=environment, cwd=tmp_path)

    assert edit.returncode == -signal.SIGKILL
    # RabbitMQ has both then; the transaction of SQLite leaves the old one.
    left = {"amqp": ["new", "old"], "sqlite": ["old"]}.get(settings.url.partition(":")[0], ["new"])
    expected = sorted([("first", ["old"]), *(("a", [args]) for args in left), ("last", ["old"])])
    eventually(lambda: sorted((row["id"], row["args"]) for row in inspector.jobs.list("mail")) == expected)


def waiting(inspector: Inspector) -> int:
    try:
        return inspector.queues.size("mail")
    except NotFound:
        return 0
