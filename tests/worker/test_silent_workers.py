"""A worker that is stopped (SIGSTOP) is shown, with its queues and the job that it holds."""

import signal

import pytest
from click.testing import CliRunner

from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.consuming.run_log import RunRecord, View, run_log_stream
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
from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow


def silent(inspector: Inspector) -> Row:
    """The only worker, once it does not answer any more."""

    def found() -> Row:
        (row,) = inspector.workers.list()
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
        return any(Duty.MAIN in counters_of(seen.counters)["duties"] or not clock for seen in found)

    return rig.client.run(read)


def test_a_worker_that_is_stopped_is_shown_with_its_job_and_its_counts(any_rig: Rig) -> None:
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

    row = silent(rig.inspector)

    job = (id, "crew.hold", "jobs", before["jobs"][0]["preview"])
    counted = ("id", "pid", "slots", "processed", "failed", "clock", "version", "release", "started_at")
    for seen in (row, silent(Inspector(later))):
        assert (seen["state"], seen["queues"]) == ("silent", ["jobs", "other"])
        assert [(each["id"], each["job"], each["queue"], each["preview"]) for each in seen["jobs"]] == [job]
        assert seen["last_seen"] >= before["started_at"]
        assert {name: seen[name] for name in counted} == {name: before[name] for name in counted}
    assert silent_text([row]).startswith(f"1 worker does not answer: {row['id']} (queues jobs, other; 1 job held;")
    queue = {each["name"]: each for each in rig.inspector.queues.list()}["jobs"]
    assert (queue["in_progress"], queue["workers"]) == (1, 0)
    status = rig.client.job_by_id(id).status()
    assert (status, status.worker) == ("working", row["id"])
    assert "does not answer" in status.reason
    found = check(Inspector(later), Limits())
    assert found.ok
    assert "1 worker does not answer" in found.line()
    assert not check(Inspector(later), Limits(workers=1)).ok
    [finding] = [each for each in examine(later, []) if each.check == "workers"]
    assert (finding.level, row["id"] in finding.text) == ("warning", True)
    later.close()

    worker.send(signal.SIGCONT)

    rig.only_worker()
    rig.open_gate()
    eventually(lambda: rig.lines()[-1] == "held ends")


def test_what_is_not_known_of_a_stopped_worker_is_shown_as_unknown() -> None:
    uncounted = RunRecord("pid:7@vm", 1_700_000_000.0, "inbox", {"1"})
    of_record, of_nothing = (worker_row(each, Serializers()) for each in (_worker(uncounted), unidentified_worker(1)))

    unknown = ("slots", "processed", "failed", "clock", "duties", "version", "release")
    assert [{row[name] for name in unknown} for row in (of_record, of_nothing)] == [{None}, {None}]
    assert (of_record["pid"], of_record["started_at"]) == (7, "2023-11-14T22:13:20Z")
    assert (of_nothing["pid"], of_nothing["started_at"]) == (None, None)


#: Other brokers show an idle worker as they show a busy one.
@pytest.mark.parametrize("any_rig", ["rabbitmq"], indirect=True)
def test_a_later_program_counts_an_idle_worker_that_is_stopped(any_rig: Rig) -> None:
    rig = any_rig
    worker = rig.idle()
    rig.freeze(worker)
    later = Client(rig.settings)

    assert silent_text([silent(Inspector(later))]).startswith("1 worker does not answer")
    later.enqueue("shop.mail", queue="mail")
    broker = ("--url", rig.settings.url, "--exchange", rig.settings.exchange)
    assert "1 worker does not answer" in CliRunner().invoke(main, ["queues", *broker]).stderr

    later.close()
    worker.send(signal.SIGKILL)
    eventually(lambda: rig.workers() == [])
