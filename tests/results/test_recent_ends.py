"""The ends of jobs that a client remembers, and those in a batch of the journal."""

from typing import Any

import pytest

from palermo.client.journal_watch import RecentEnds, is_about, job_records
from palermo.core.journal_records import Record, RecordBatch


def ended(id: str, kind: str = "succeeded", **more: Any) -> Record:
    return {"kind": kind, "at": 10.0, "id": id, "job": "a", "queue": "jobs", **more}


def test_the_last_end_of_a_job_is_remembered() -> None:
    ends = RecentEnds(5.0)
    ends.add(ended("1", "failed"))
    ends.add(ended("1"))

    assert ends.find("1", None) == ended("1")
    assert ends.find("2", None) is None
    assert ends.since == 5.0


def test_what_does_not_fit_is_forgotten_oldest_first() -> None:
    clock = iter(range(100, 200))
    ends = RecentEnds(5.0, now=lambda: float(next(clock)), most=3)
    for number in range(5):
        ends.add(ended(f"{number}"))

    assert [ends.find(f"{number}", None) is not None for number in range(5)] == [False, False, True, True, True]
    assert ends.since == 101.0
    assert ends.full

    large = {"content_type": "application/json", "text": "x" * 300}
    ends = RecentEnds(5.0, most_bytes=1_000)
    for number in range(5):
        ends.add(ended(f"{number}", result=large))
    assert [ends.find(f"{number}", None) is not None for number in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("record", "created", "is_its"),
    [
        (ended("1", created=7), 7, True),
        (ended("1", created=7), 8, False),
        (ended("1", created=7), None, True),
        (ended("1"), 8, True),
        ({**ended("1"), "by_hand": True}, 10, True),
        ({**ended("1"), "by_hand": True}, 11, False),
    ],
)
def test_an_id_may_be_used_again(record: Record, created: int | None, is_its: bool) -> None:
    assert is_about(record, created) is is_its


@pytest.mark.parametrize(
    ("action", "kind"), [("cancel scheduled", "cancelled"), ("give up", "failed"), ("discard", "discarded")]
)
def test_what_somebody_did_to_jobs_ends_each_of_them(action: str, kind: str) -> None:
    done = {"kind": "action", "at": 9.0, "action": action, "by": "ann", "outcome": "done", "ids": ["1", "2"]}

    found = list(
        job_records(RecordBatch(1, "client", [done, {**done, "outcome": "refused"}, {**done, "action": "pause"}]))
    )

    assert all(is_end for _, is_end in found)
    assert [(record["id"], record["kind"]) for record, _ in found] == [("1", kind), ("2", kind)]
    assert found[0][0]["message"] == f"{action} by ann"


@pytest.mark.parametrize(("kind", "is_end"), [("succeeded", True), ("retried", False), ("log", False), ("new", False)])
def test_an_end_names_its_writer_and_what_names_no_job_is_about_none(kind: str, is_end: bool) -> None:
    unnamed: list[Record] = [
        {"kind": "counts", "at": 1.0},
        {"kind": kind, "at": 1.0},
        {"kind": kind, "at": 1.0, "id": 3},
    ]

    ((record, over),) = job_records(RecordBatch(1, "pid:1@h", [ended("1", kind), *unnamed]))

    assert over is is_end
    assert record.get("writer") == ("pid:1@h" if is_end else None)
