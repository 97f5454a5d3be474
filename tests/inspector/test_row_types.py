"""Rows have the fields of their types, and values of these fields' types: what a type checker says of them is true."""

import time
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

import palermo
from palermo.contract.broker import Broker
from palermo.contract.row_types import AttemptRow, ErrorRow, RunningRow, WorkerUsageRow
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.worker_info import RunningJob, WorkerInfo
from palermo.core.queue_selection import QueueSelection
from palermo.inspector.inspector import Inspector
from tests.helpers import eventually
from tests.inspector.jobs import TAG, failure, message, publish, publish_failed


def check(row: Mapping[str, Any], kind: type) -> None:
    """The row has the fields of this type and no others, and each value is of its field's type."""
    assert row.keys() == get_type_hints(kind).keys()
    msgspec.convert(row, kind)


def report() -> WorkerInfo:
    running = RunningJob(id="7", job="shop.send", queue="mail", slot=1, started_at=time.time(), progress=0.5)
    return WorkerInfo(
        id=TAG, host="test", pid=1, queues=("mail",), slots=1, state="working", started_at=time.time(), jobs=(running,)
    )


def test_rows_of_queues_and_jobs_have_the_fields_of_their_type(inspector: Inspector) -> None:
    publish_failed(inspector._client, (message("1", "ann@example.com"), failure()))
    publish(inspector._client, message("2", "ann@example.com"), message("3", run_at=time.time() + 3_600))

    [failed] = inspector.failed.list()
    [waiting] = inspector.jobs.list("mail")
    [scheduled] = inspector.scheduled.list()

    for row in inspector.queues.list():
        check(row, palermo.QueueRow)
    check(failed, palermo.FailedRow)
    assert failed["error"] is not None
    check(failed["error"], ErrorRow)
    check(failed["attempts"][0], AttemptRow)
    check(inspector.failed.show("1"), palermo.FailedRow)
    check(waiting, palermo.JobRow)
    check(scheduled, palermo.ScheduledRow)


def test_rows_of_workers_have_the_fields_of_their_type(inspector: Inspector) -> None:
    async def serve(broker: Broker) -> None:
        await broker.consume(QueueSelection.parse("mail"), slots=1, tag=TAG, report=report)

    inspector._client.run(serve)

    [row] = eventually(inspector.workers.list)

    check(row, palermo.WorkerRow)
    check(row["jobs"][0], RunningRow)
    check(inspector.workers.show(TAG), WorkerUsageRow)


def test_a_job_due_after_all_calendars_does_not_stop_the_move_of_others(inspector: Inspector) -> None:
    """Its `run_at` is None."""
    publish(inspector._client, message("1", run_at=time.time() + 3_600), message("2", run_at=1e15))

    moved = inspector.scheduled.reschedule(ScheduledFilter(), later=60)

    assert [(row["id"], row["state"]) for row in moved] == [("1", "moved")]
