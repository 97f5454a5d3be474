"""The ends of jobs that a client remembers, and those in a batch of the journal."""

from typing import Any

import pytest

from palermo.client.journal_watch import RecentEnds, is_about, job_records
from palermo.core.journal_records import Record, RecordBatch


def ended(id: str, kind: str = "succeeded", **more: Any) -> Record:
    return {"kind": kind, "at": 10.0, "id": id, "job": "a", "queue": "jobs", **more}


def test_what_does_not_fit_is_forgotten_oldest_first() -> None:
    clock = iter(range(100, 200))
    ends = RecentEnds(5.0, now=lambda: float(next(clock)), most=3)
    for number in range(5):
        ends.add(ended(f"{number}"))

    assert [ends.find(f"{number}", None) is not None for number in range(5)] == [False, False, True, True, True]
    assert ends.since == 101.0
    assert ends.full
    ends.add(ended("4", "failed"))
    assert ends.find("4", None) == ended("4", "failed"), "the last end of a job counts"

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

    others: list[Record] = [{**done, "outcome": "refused"}, {**done, "action": "pause"}]
    unnamed: list[Record] = [{"kind": "counts", "at": 1.0}, {"kind": "succeeded", "at": 1.0, "id": 3}]
    found = list(job_records(RecordBatch(1, "client", [done, *others, *unnamed])))

    assert all(is_end for _, is_end in found)
    assert [(record["id"], record["kind"]) for record, _ in found] == [("1", kind), ("2", kind)]
    assert found[0][0]["message"] == f"{action} by ann"
