import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from palermo.contract.broker import QueueInfo
from palermo.contract.rows import as_json, iso_instant, job_row, queue_row, running_row, worker_row
from palermo.contract.serialization import Serializers
from palermo.contract.worker_info import RunningJob, ToldArguments, WorkerInfo, checked_worker
from palermo.core.failure import Attempt, Failure
from palermo.core.lifecycle import JobState
from palermo.core.message import Message

SERIALIZERS = Serializers.default()


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float


def message(**fields: object) -> Message:
    return Message(**{"id": "1", "queue": "mail", "job": "shop.send", "body": b'["a@b.c", 3]', **fields})  # type: ignore[arg-type]


def test_a_waiting_job_has_every_field_of_the_row() -> None:
    row = job_row(message(created_at=1_700_000_000, preview="'a@b.c', 3"), JobState.PENDING, SERIALIZERS)

    assert row == {
        "id": "1",
        "job": "shop.send",
        "queue": "mail",
        "state": "pending",
        "args": ["a@b.c", 3],
        "kwargs": {},
        "preview": "'a@b.c', 3",
        "content_type": "application/json",
        "created_at": "2023-11-14T22:13:20Z",
        "run_at": None,
        "retries": None,
        "failed_at": None,
        "error": None,
        "attempts": [],
        "worker": None,
        "priority": 0,
        "tenant": None,
        "topic": None,
        "parent": None,
        "headers": {},
    }


def test_a_job_that_waits_to_be_retried_says_why_and_what_went_before() -> None:
    failure = Failure(exception_class="ValueError", message="no", stack_trace="Traceback…", failed_at=1_700_000_001)
    first = Attempt(number=1, exception_class="KeyError", message="x", failed_at=1_700_000_000)
    waiting = message(failure=failure, worker="pid:7@host/worker-1", retries=2, attempts=(first,))

    row = job_row(waiting, JobState.PENDING, SERIALIZERS)

    assert (row["state"], row["retries"], row["error"]["message"]) == ("retrying", 2, "no")
    assert row["attempts"] == [
        {"attempt": 1, "class": "KeyError", "message": "x", "failed_at": "2023-11-14T22:13:20Z"},
        {"attempt": 2, "class": "ValueError", "message": "no", "failed_at": "2023-11-14T22:13:21Z"},
    ]


def test_a_failed_job_shows_its_error_and_when_it_failed() -> None:
    failure = Failure(exception_class="ValueError", message="no", stack_trace="Traceback…", failed_at=1_700_000_001)
    failed = message(failure=failure, worker="pid:7@host/worker-1", retries=0)

    row = job_row(failed, JobState.FAILED, SERIALIZERS)

    assert row["error"] == {"class": "ValueError", "message": "no", "traceback": "Traceback…"}
    assert (row["state"], row["failed_at"], row["retries"], row["worker"]) == (
        "failed",
        "2023-11-14T22:13:21Z",
        0,
        "pid:7@host/worker-1",
    )


def test_both_kinds_of_arguments_are_told_apart() -> None:
    both = message(body=b'{"args": [1], "kwargs": {"width": 2}}', arguments="both")

    row = job_row(both, JobState.PENDING, SERIALIZERS)

    assert (row["args"], row["kwargs"]) == ([1], {"width": 2})
    assert row["preview"] == "1, width=2"


def test_looking_at_a_pickle_never_unpickles_and_shows_the_preview() -> None:
    bomb = b"cbuiltins\nexit\n(tR."
    pickled = message(body=bomb, content_type="application/x-pickle", preview="'x'")

    row = job_row(pickled, JobState.PENDING, SERIALIZERS)

    assert (row["args"], row["kwargs"], row["preview"]) == (None, None, "'x'")


@pytest.mark.parametrize(
    "fields",
    [
        {"body": b"\xff\x00 not json"},
        {"content_type": "application/x-unheard-of"},
        {"content_encoding": "gzip"},
        {"arguments": "some"},
        {"body": b"[" * 100_000},
    ],
)
def test_a_body_that_cannot_be_read_is_null_in_the_row(fields: dict[str, object]) -> None:
    row = job_row(message(**fields), JobState.PENDING, SERIALIZERS)

    assert (row["args"], row["kwargs"], row["preview"]) == (None, None, None)


def test_an_empty_body_is_no_arguments() -> None:
    row = job_row(message(body=b""), JobState.PENDING, SERIALIZERS)

    assert (row["args"], row["kwargs"], row["preview"]) == ([], {}, "")


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


def test_a_value_nested_deeper_than_json_writes_is_cut() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]

    json.dumps(as_json(deep))


@pytest.mark.parametrize("name", ["id", "job", "queue", "preview", "content_type", "worker"])
def test_text_that_utf8_cannot_hold_does_not_break_a_row(name: str) -> None:
    row = job_row(message(**{name: "a\ud800"}), JobState.PENDING, SERIALIZERS)

    json.dumps(row, ensure_ascii=False).encode()


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


def test_a_queue_row() -> None:
    assert queue_row(QueueInfo(name="mail", pending=3, in_progress=1, workers=2)) == {
        "name": "mail",
        "pending": 3,
        "in_progress": 1,
        "workers": 2,
        "paused": False,
    }


def test_a_worker_row_holds_what_it_runs() -> None:
    running = RunningJob(
        id="1",
        job="shop.send",
        queue="mail",
        slot=1,
        started_at=2,
        progress=0.5,
        text="half",
        line="ü",
        key="k",
        parent="p",
        arguments=ToldArguments.of(message(body=b'{"to": "a@b.c"}')),
    )
    info = WorkerInfo(
        id="pid:7@host",
        host="host",
        pid=7,
        queues=("mail",),
        slots=1,
        state="working",
        started_at=1,
        jobs=(running,),
        version="1.2.0",
    )
    info = replace(checked_worker(json.loads(json.dumps(info.to_plain()))), seen_at=3)

    assert worker_row(info, SERIALIZERS) == {
        "id": "pid:7@host",
        "host": "host",
        "pid": 7,
        "queues": ["mail"],
        "slots": 1,
        "state": "working",
        "answers": True,
        "started_at": "1970-01-01T00:00:01Z",
        "processed": 0,
        "failed": 0,
        "clock": False,
        "duties": [],
        "version": "1.2.0",
        "release": None,
        "last_seen": "1970-01-01T00:00:03Z",
        "jobs": [
            {
                "id": "1",
                "job": "shop.send",
                "queue": "mail",
                "started_at": "1970-01-01T00:00:02Z",
                "progress": 0.5,
                "text": "half",
                "line": "ü",
                "key": "k",
                "parent": "p",
                "args": [],
                "kwargs": {"to": "a@b.c"},
                "preview": "to='a@b.c'",
                "content_type": "application/json",
            }
        ],
    }


def test_of_a_long_body_only_the_preview_is_told() -> None:
    long = message(body=b'["' + b"x" * 600 + b'"]', preview="'xxx…")
    running = RunningJob(id="1", job="shop.send", queue="mail", slot=1, started_at=2, arguments=ToldArguments.of(long))

    row = running_row(running, SERIALIZERS)

    assert (row["args"], row["kwargs"], row["preview"]) == (None, None, "'xxx…")


def test_an_integer_too_long_for_decimal_text_is_written_in_hexadecimal() -> None:
    assert as_json(10**5_000) == hex(10**5_000)
