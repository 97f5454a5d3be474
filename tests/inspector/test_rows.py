import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, get_type_hints
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import palermo
from palermo.contract.broker import Broker
from palermo.contract.row_types import AttemptRow, ErrorRow, RunningRow, WorkerUsageRow
from palermo.contract.rows import as_json, iso_instant, job_row, running_row, worker_row
from palermo.contract.serialization import Serializers
from palermo.contract.worker_info import ReportedArguments, RunningJob, WorkerInfo
from palermo.core.failure import Attempt, Failure
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.inspector.inspector import Inspector
from palermo.views.filter import JobFilter
from tests.helpers import eventually
from tests.inspector.jobs import TAG, failure, message, publish, publish_failed

SERIALIZERS = Serializers.default()


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float


def a_message(**fields: object) -> Message:
    return Message(**{"id": "1", "queue": "mail", "job": "shop.send", "body": b'["a@b.c", 3]', **fields})  # type: ignore[arg-type]


def test_a_job_that_waits_to_be_retried_says_why_and_what_went_before() -> None:
    failure = Failure(exception_class="ValueError", message="no", stack_trace="Traceback…", failed_at=1_700_000_001)
    first = Attempt(number=1, exception_class="KeyError", message="x", failed_at=1_700_000_000)
    waiting = a_message(failure=failure, worker="pid:7@host/worker-1", retries=2, attempts=(first,))

    row = job_row(waiting, JobState.PENDING, SERIALIZERS)

    assert (row["state"], row["retries"], row["worker"]) == ("retrying", 2, "pid:7@host/worker-1")
    assert row["error"] == {"class": "ValueError", "message": "no", "traceback": "Traceback…"}
    assert row["failed_at"] == "2023-11-14T22:13:21Z"
    assert row["attempts"] == [
        {"attempt": 1, "class": "KeyError", "message": "x", "failed_at": "2023-11-14T22:13:20Z"},
        {"attempt": 2, "class": "ValueError", "message": "no", "failed_at": "2023-11-14T22:13:21Z"},
    ]
    assert job_row(waiting, JobState.FAILED, SERIALIZERS)["state"] == "failed"


@pytest.mark.parametrize(
    ("fields", "args", "kwargs", "preview"),
    [
        ({"body": b'{"args": [1], "kwargs": {"width": 2}}', "arguments": "both"}, [1], {"width": 2}, "1, width=2"),
        ({"body": b""}, [], {}, ""),
        # A pickle is never unpickled.
        (
            {"body": b"cbuiltins\nexit\n(tR.", "content_type": "application/x-pickle", "preview": "'x'"},
            *(None, None, "'x'"),
        ),
        ({"body": b"\xff\x00 not json"}, None, None, None),
        ({"content_type": "application/x-unheard-of"}, None, None, None),
        ({"content_encoding": "gzip"}, None, None, None),
        ({"arguments": "some"}, None, None, None),
        ({"body": b"[" * 100_000}, None, None, None),
    ],
    ids=["both", "empty", "pickle", "no json", "no serializer", "no gzip", "no kind", "nested"],
)
def test_rows_have_readable_arguments(fields: dict[str, object], args: object, kwargs: object, preview: object) -> None:
    row = job_row(a_message(**fields), JobState.PENDING, SERIALIZERS)

    assert (row["args"], row["kwargs"], row["preview"]) == (args, kwargs, preview)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x00\xff", "AP8="),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("lone \ud800", "lone ?"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(minutes=1), 60.0),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        ((1, {2}), [1, [2]]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
    ],
)
def test_a_value_that_json_lacks_has_a_text_form(value: object, shown: object) -> None:
    assert as_json(value) == shown


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.datetimes()
    | st.decimals(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
)


@given(_values)
def test_whatever_a_message_holds_its_row_is_json(value: object) -> None:
    json.dumps(as_json(value), allow_nan=False).encode()


def test_what_json_and_utf_8_cannot_hold_is_cut_or_written_otherwise() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    names = ("id", "job", "queue", "preview", "content_type", "worker")

    row = job_row(a_message(**dict.fromkeys(names, "a\ud800")), JobState.PENDING, SERIALIZERS)

    json.dumps(row, ensure_ascii=False).encode()
    json.dumps(as_json(deep))
    assert as_json(10**5_000) == hex(10**5_000)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00Z"),
        (1.5, "1970-01-01T00:00:01.500Z"),
        (10**18, None),
        (float("nan"), None),
    ],
)
def test_an_instant_is_iso_8601_in_utc(seconds: float | None, shown: str | None) -> None:
    assert iso_instant(seconds) == shown


def test_a_worker_row_holds_what_it_runs() -> None:
    told = ReportedArguments.of(a_message(body=b'{"to": "a@b.c"}'))
    more = {"progress": 0.5, "text": "half", "line": "ü", "key": "k", "parent": "p"}
    running = RunningJob(id="1", job="shop.send", queue="mail", slot=1, started_at=2, arguments=told, **more)  # type: ignore[arg-type]
    who = {"id": "pid:7@host", "host": "host", "pid": 7, "slots": 1, "state": "working", "version": "1.2.0"}
    info = WorkerInfo(**who, queues=("mail",), started_at=1, jobs=(running,))  # type: ignore[arg-type]

    row = worker_row(replace(WorkerInfo.from_plain(json.loads(json.dumps(info.to_plain()))), seen_at=3), SERIALIZERS)

    [job] = row.pop("jobs")  # type: ignore[misc]
    assert row == {
        **who,
        "queues": ["mail"],
        "answers": True,
        "started_at": "1970-01-01T00:00:01Z",
        "processed": 0,
        "failed": 0,
        "clock": False,
        "duties": [],
        "release": None,
        "last_seen": "1970-01-01T00:00:03Z",
    }
    body = {"args": [], "kwargs": {"to": "a@b.c"}, "preview": "to='a@b.c'", "content_type": "application/json"}
    known = {"id": "1", "job": "shop.send", "queue": "mail", "started_at": "1970-01-01T00:00:02Z"}
    assert job == {**more, **known, **body}


def test_of_a_long_body_only_the_preview_is_told() -> None:
    long = a_message(body=b'["' + b"x" * 600 + b'"]', preview="'xxx…")
    arguments = ReportedArguments.of(long)
    running = RunningJob(id="1", job="shop.send", queue="mail", slot=1, started_at=2, arguments=arguments)

    row = running_row(running, SERIALIZERS)

    assert (row["args"], row["kwargs"], row["preview"]) == (None, None, "'xxx…")


# -- types of rows


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
    for job in (failed, inspector.failed.show("1"), waiting, scheduled):
        check(job, palermo.JobRow)
    assert failed["error"] is not None
    check(failed["error"], ErrorRow)
    check(failed["attempts"][0], AttemptRow)


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

    moved = inspector.scheduled.reschedule(JobFilter(), later=60)

    assert [(row["id"], row["state"]) for row in moved] == [("1", "moved")]
