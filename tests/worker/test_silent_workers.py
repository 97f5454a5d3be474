"""A worker that is stopped (SIGSTOP) is shown, with its queues and the job that it holds."""

import signal

import pytest
from click.testing import CliRunner

from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.consuming.run_log import Seen, View, run_log_stream
from palermo.brokers.rabbitmq.consuming.silent_workers import _worker
from palermo.cli import main
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.rows import Row, silent_text, worker_row
from palermo.contract.serialization import Serializers
from palermo.contract.worker_info import counters_of, unidentified_worker
from palermo.core.election import Duty
from palermo.inspector.check import Limits, check
from palermo.inspector.doctor import examine
from palermo.inspector.inspector import Inspector
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow


def begun(rig: Rig, *arguments: str) -> tuple[WorkerProcess, str]:
    """A worker that holds a job, and the job's id."""
    worker = rig.worker(*arguments)
    id = rig.hold()
    eventually(lambda: [job["id"] for row in rig.workers() for job in row["jobs"]] == [id])
    return worker, id


def silent(inspector: Inspector) -> Row:
    """The only worker, once it does not answer any more."""

    def found() -> Row:
        (row,) = inspector.workers()
        return {} if row["answers"] else row

    return eventually(found)


def written_down(rig: Rig, id: str, *, clock: bool = False) -> bool:
    """Whether the run log has the job, and with `clock` that its worker keeps the time; on SQLite the file has both."""

    async def read(broker: Broker) -> bool:
        if not isinstance(broker, RabbitmqBroker):
            return True
        view = View()

        def learn(record: Record) -> None:
            view.add(record)

        follower = await run_log_stream(rig.settings.exchange, broker._open_publisher).follow(broker._connection, learn)
        if follower is not None:
            await follower.close()
        found = [seen for seen in view.seen.values() if id in seen.runs]
        return any(Duty.TIME in counters_of(seen.counters)["duties"] or not clock for seen in found)

    return rig.client.run(read)


def test_a_worker_that_is_stopped_is_shown_with_its_last_answer(any_rig: Rig) -> None:
    rig = any_rig
    worker, id = begun(rig, "-q", "jobs,other")
    before = rig.only_worker()
    rig.freeze(worker)

    row = silent(rig.inspector)

    assert (row["id"], row["state"], row["queues"]) == (before["id"], "silent", ["jobs", "other"])
    assert [(job["id"], job["job"], job["preview"]) for job in row["jobs"]] == [
        (id, "crew.hold", before["jobs"][0]["preview"])
    ]
    assert row["last_seen"] >= before["started_at"]
    known = f"queues jobs, other; 1 job held; heard of last at {row['last_seen']}"
    assert silent_text([row]) == f"1 worker does not answer: {row['id']} ({known})"
    queue = {each["name"]: each for each in rig.inspector.queues()}["jobs"]
    assert (queue["in_progress"], queue["workers"]) == (1, 0)
    status = rig.client.job_by_id(id).status()
    assert (status, status.worker) == ("working", row["id"])
    assert "does not answer" in status.reason

    worker.send(signal.SIGCONT)

    rig.only_worker()
    rig.open_gate()
    eventually(lambda: rig.lines()[-1] == "held ends")


def test_a_later_program_sees_the_stopped_worker_its_job_and_its_counts(any_rig: Rig) -> None:
    rig = any_rig
    worker = rig.worker("-c", "2", "-q", "jobs,other")
    for _ in range(2):
        rig.enqueue("nothing")
    eventually(lambda: rig.only_worker()["processed"] == 2)
    id = rig.hold()
    # It may become the leader after it has written down the job.
    eventually(lambda: rig.only_worker()["clock"])
    eventually(lambda: written_down(rig, id, clock=True))
    before = eventually(lambda: row if (row := rig.only_worker())["jobs"] else {})
    rig.freeze(worker)
    later = Client(rig.settings)

    row = silent(Inspector(later))

    assert row["queues"] == ["jobs", "other"]
    assert [(job["id"], job["job"], job["queue"], job["preview"]) for job in row["jobs"]] == [
        (id, "crew.hold", "jobs", before["jobs"][0]["preview"])
    ]
    assert row["last_seen"] >= before["started_at"]
    counted = ("pid", "slots", "processed", "failed", "clock", "version", "release", "started_at")
    assert {name: row[name] for name in counted} == {name: before[name] for name in counted}
    found = check(Inspector(later), Limits())
    assert found.ok
    assert "1 worker does not answer" in found.line()
    assert not check(Inspector(later), Limits(workers=1)).ok
    [finding] = [each for each in examine(later, []) if each.check == "workers"]
    assert (finding.level, row["id"] in finding.text) == ("warning", True)
    later.close()
    worker.send(signal.SIGCONT)
    rig.only_worker()


def test_what_is_not_known_of_a_stopped_worker_is_shown_as_unknown() -> None:
    earlier_version = Seen("pid:7@vm", "inbox", frozenset({"1"}), since=1_700_000_000.0)
    of_record, of_nothing = (
        worker_row(each, Serializers()) for each in (_worker(earlier_version), unidentified_worker(1))
    )

    unknown = ("slots", "processed", "failed", "clock", "duties", "version", "release")
    assert [{row[name] for name in unknown} for row in (of_record, of_nothing)] == [{None}, {None}]
    assert (of_record["pid"], of_record["started_at"]) == (7, "2023-11-14T22:13:20Z")
    assert (of_nothing["pid"], of_nothing["started_at"]) == (None, None)


def test_a_later_program_counts_an_idle_worker_that_is_stopped(any_rig: Rig) -> None:
    rig = any_rig
    worker = rig.worker()
    rig.ready(worker)
    rig.freeze(worker)
    later = Client(rig.settings)

    assert silent_text([silent(Inspector(later))]).startswith("1 worker does not answer")
    later.enqueue("shop.mail", queue="mail")
    broker = ("--url", rig.settings.url, "--exchange", rig.settings.exchange)
    assert "1 worker does not answer" in CliRunner().invoke(main, ["queues", *broker]).stderr

    later.close()
    worker.send(signal.SIGKILL)
    eventually(lambda: rig.workers() == [])
