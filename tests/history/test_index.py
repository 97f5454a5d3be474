"""The index of finished jobs, and the list of actions: what they find, and that they stay bounded."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from palermo.errors import StoreInvalid
from palermo.history import index as index_module
from palermo.history.audit import AuditLog
from palermo.history.index import Index
from palermo.history.listings import life
from palermo.views.filter import EVERYTHING as FINISHED
from palermo.views.filter import AuditFilter, JobFilter
from tests.history.written import NOON, batch, done_by, ended, enqueued, failed


@pytest.fixture
def index() -> Iterator[Index]:
    with closing(Index()) as index:
        yield index


@pytest.fixture
def small() -> Iterator[Index]:
    """One that keeps twelve records."""
    with closing(Index(most=12)) as index:
        yield index


@pytest.fixture
def audit() -> Iterator[AuditLog]:
    with closing(AuditLog()) as audit:
        yield audit


def ids(index: Index, filter: JobFilter = FINISHED, **page: int) -> list[str]:
    return [entry.id for entry in index.page(filter, **page)]


JOBS = batch(
    enqueued("a"),
    ended("a", at=NOON + 1),
    ended("b", at=NOON + 2, queue="slow", job="shop.mail.send"),
    failed("c", at=NOON + 3, took=1.5),
    failed("d", "retried", at=NOON + 4, delay=15),
    ended("d", "discarded", at=NOON + 5, reason="too late", took=None),
    ended("e", "cancelled", at=NOON + 6, by="anna", took=None),
    ended("f", "snoozed", at=NOON + 7, delay=5),
    ended("g", "released", at=NOON + 8),
)


def test_a_row_tells_how_a_run_ended(index: Index) -> None:
    index.take(JOBS)
    rows = {row["id"]: row for row in (entry.row() for entry in index.page(FINISHED))}

    assert [*rows] == [*"edcba"]
    assert rows["c"] == {
        "id": "c",
        "job": "shop.resize",
        "queue": "mail",
        "state": "failed",
        "finished_at": "2026-11-21T09:00:03Z",
        "wait": 0.25,
        "took": 1.5,
        "attempt": 1,
        "worker": "pid:7@host/worker-2",
        "error": {"class": "builtins.ValueError", "message": "no such thing"},
        "reason": None,
    }
    assert [rows[id]["reason"] for id in "ade"] == [None, "too late", "by anna"]
    assert index.names("queue") == ["mail", "slow"]
    assert index.names("job") == ["shop.mail.send", "shop.resize"]


def test_pages_and_counts_stay_right_while_records_arrive(small: Index) -> None:
    counts = []
    for number in range(10):
        small.take(batch(ended(f"{number}"), position=number))
        counts.append((small.count(FINISHED), small.count(JobFilter(text="9"))))

    assert counts[-3:] == [(8, 0), (9, 0), (10, 1)]
    assert ids(small) == list("9876543210")
    assert ids(small, offset=1, limit=4) == list("8765")
    assert ids(small, offset=7, limit=4) == list("210")
    assert ids(small, offset=10, limit=4) == []
    assert not small.cut


def test_pages_of_a_search_are_the_same_if_few_or_many_match(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = JobFilter(text="such thing")
    for few in (1_000, 5):
        monkeypatch.setattr(index_module, "_FEW", few)
        for number in range(4):
            index.take(batch(failed(f"{few}-{number}"), ended(f"other-{few}-{number}")))
            many = ids(index, wanted, limit=100)
            assert index.count(wanted) == len(many)
            assert many[0] == f"{few}-{number}"
            assert ids(index, wanted, offset=1, limit=2) == many[1:3]
    assert len(many) == 8


def test_what_is_too_much_is_forgotten_from_its_beginning(small: Index) -> None:
    for number in range(30):
        small.take(batch(enqueued(f"{number}"), ended(f"{number}"), position=number))

    assert small.cut
    assert 8 <= small.size() <= 12
    assert ids(small)[0] == "29"
    assert small.count(FINISHED) == len(ids(small)) == small.size() / 2
    assert small.of("0") == []
    assert [entry.kind for entry in small.of("28")] == ["enqueued", "succeeded"]


def test_all_that_is_known_of_a_job_is_told_in_order(small: Index, audit: AuditLog) -> None:
    steps = [
        *(enqueued("a"), failed("a", "retried", at=NOON + 1, delay=15), failed("a", at=NOON + 2, attempt=2)),
        *(done_by("anna", "requeue", at=NOON + 3, ids=["a", "b"]), ended("a", at=NOON + 4, attempt=3)),
    ]
    for position, step in enumerate(steps):
        for taker in (small, audit):
            taker.take(batch(step, enqueued(f"other-{position}"), position=position))

    told = life(small, audit, "a")

    assert [row["kind"] for row in told] == ["enqueued", "retried", "failed", "action", "succeeded"]
    assert [row["delay"] for row in told if "delay" in row] == [15]
    assert [row["by"] for row in told if "by" in row] == ["anna"]
    assert life(small, audit, "nobody") == []


def test_children_of_a_job_are_found_by_what_its_enqueue_or_its_end_tells(small: Index) -> None:
    child = {"headers": {"parent-id": "p"}}
    small.take(batch(enqueued("a", parent="p"), enqueued("b", parent="p"), enqueued("x", parent="q")))
    more = enqueued("y"), ended("z", headers={})
    small.take(batch(ended("event@mail", **child), ended("b", "cancelled", **child), *more))

    def known(limit: int = 9) -> list[tuple[str, str]]:
        return [(entry.id, entry.kind) for entry in small.children("p", limit=limit)]

    assert known() == [("b", "cancelled"), ("event@mail", "succeeded"), ("a", "enqueued")]
    assert known(2) == [("b", "cancelled"), ("event@mail", "succeeded")]
    assert small.children("nobody", limit=9) == []

    # The client's record may come after the worker's.
    small.take(batch(ended("c", **child), enqueued("c", parent="p"), failed("a", **child)))
    assert known()[:2] == [("a", "failed"), ("c", "succeeded")]

    # A hostile record names a parent that is none.
    small.take(batch(*(enqueued("d", parent=one) for one in (7, None, [], "", "p" * 5_000)), ended("d", headers="p")))
    assert "d" not in dict(known())


def test_what_is_about_no_job_is_left_out_and_what_was_lost_counted(index: Index) -> None:
    records: list[dict[str, Any]] = [
        {"kind": ["succeeded"], "at": 1.0, "id": "x"},
        {"kind": "tomorrow's", "at": 1.0, "id": "x"},
        {"kind": "succeeded", "at": 1.0, "id": 7},
        {"kind": "succeeded", "at": 1.0, "id": "x" * 1_000_000},
        {"kind": "succeeded", "at": 1.0},
        {"kind": "counts", "at": 1.0, "queue": "mail", "job": "a", "succeeded": 4},
        {"kind": "lost", "at": 1.0, "count": 12},
        {"kind": "lost", "at": 1.0, "count": "many"},
    ]
    index.take(batch(*records, ended("a")))

    assert (ids(index), index.size(), index.lost) == (["a"], 1, 12)


@pytest.mark.parametrize(
    "fields",
    [
        {"at": "yesterday"},
        {"at": float("nan")},
        {"at": 10**400},
        {"took": float("inf"), "wait": [1]},
        {"queue": None, "job": {"a": 1}, "slot": "two", "attempt": -1},
        {"error": 7, "message": ["no"]},
        {"job": "\ud800", "queue": "\ud800"},
        {"more": eval("[" * 80 + "]" * 80)},
        {"result": {"value": "x" * 100_000}},
    ],
)
def test_whatever_a_record_holds_its_run_can_be_shown(index: Index, fields: dict[str, Any]) -> None:
    index.take(batch({**ended("x"), **fields}))

    (entry,) = index.page(FINISHED)
    assert entry.row()["state"] == "done"
    assert [each.kind for each in index.of(entry.id)] == ["succeeded"]
    assert index.file_size() < 200_000
    assert index.count(JobFilter(text="resize", longer=0.5)) in (0, 1)


def test_a_full_disk_empties_the_index_which_is_filled_again(index: Index) -> None:
    index.take(batch(ended("a")))
    index._db.execute("pragma max_page_count = 20")

    with pytest.raises(StoreInvalid, match=r"full.*TMPDIR"):
        index.take(batch(*(failed(f"{n}", message="x" * 500) for n in range(1_000))))
    index.reset()
    assert (ids(index), index.size(), index.count(FINISHED), index.names("job")) == ([], 0, 0, [])
    index.take(batch(ended("b")))
    assert ids(index) == ["b"]


def test_an_index_that_is_closed_while_somebody_reads_it_is_empty(small: Index) -> None:
    small.take(batch(*(ended(f"{n}") for n in range(4))))

    small.close()

    assert (small.count(FINISHED), small.page(FINISHED), small.of("1")) == (0, [], [])
    assert (small.size(), small.names("job")) == (0, [])


def test_an_instant_finds_runs_whose_clocks_differ(index: Index) -> None:
    for at in (NOON + 5, NOON + 9, NOON + 3, NOON + 8):
        index.take(batch(ended(f"{at - NOON:.0f}", at=at)))

    assert [ids(index, JobFilter(since=NOON + since)) for since in (3, 5, 8, 9, 10)] == [
        ["8", "3", "9", "5"],
        ["8", "9", "5"],
        ["8", "9"],
        ["9"],
        [],
    ]
    assert index.ends(["5", "8", "9"], since=NOON + 8) == {"done": 2}


def test_names_and_errors_of_forgotten_runs_are_forgotten(small: Index) -> None:
    small.take(batch(ended("a", "failed", error="shop.Early", queue="old")))
    for number in range(30):
        small.take(batch(ended(f"{number}", "failed", error="shop.Late")))

    assert ([*small.first_errors()], small.names("queue")) == (["shop.Late"], ["mail"])


ACTIONS = batch(
    done_by("anna", "requeue", at=NOON + 1, ids=["a", "b"], count=2),
    done_by("bert", "pause", at=NOON + 2, queue="mail"),
    done_by("anna", "purge", at=NOON + 3, queue="slow", count=7, outcome="refused"),
    ended("a"),
)


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ({}, "purge pause requeue"),
        ({"by": "anna"}, "purge requeue"),
        ({"by": "a*", "action": "re*"}, "requeue"),
        ({"queue": "mail"}, "pause"),
        ({"text": "REFUSED"}, "purge"),
        ({"text": "b"}, "pause requeue"),
        ({"since": NOON + 2, "until": NOON + 2}, "pause"),
    ],
)
def test_actions_are_found_by_who_what_and_when(audit: AuditLog, filter: dict[str, Any], found: str) -> None:
    audit.take(ACTIONS)

    assert [row["action"] for row in audit.page(AuditFilter(**filter))] == found.split()
    assert audit.count(AuditFilter(**filter)) == len(found.split())


def test_an_action_is_one_row_also_on_very_many_jobs(audit: AuditLog) -> None:
    audit.take(ACTIONS)
    [row] = audit.page(AuditFilter(), offset=2, limit=1)
    told = {"by": "anna", "source": "web", "action": "requeue", "outcome": "done", "count": 2, "ids": ["a", "b"]}
    assert row == {"at": "2026-11-21T09:00:01Z", "queue": None, "what": None, **told}

    audit.reset()
    assert audit.count(AuditFilter()) == 0
    for part in range(3):
        more = {"part": part} if part else {}
        audit.take(batch(done_by("anna", "discard", ids=[f"{part}-{n}" for n in range(1_000)], count=3_000, **more)))

    assert [(row["action"], row["count"]) for row in audit.page(AuditFilter())] == [("discard", 3_000)]
    assert all(len(audit.of(f"{part}-999")) == 1 for part in range(3))


def test_the_oldest_actions_are_forgotten() -> None:
    with closing(AuditLog(most=1_000)) as audit:
        for number in range(0, 3_100, 100):
            audit.take(batch(*(done_by("anna", "cancel", ids=[f"{number + n}"]) for n in range(100))))

        assert 1_000 <= audit.count(AuditFilter()) <= 2_000
        assert (audit.of("0"), len(audit.of("3099"))) == ([], 1)


def test_the_last_end_of_each_job_since_an_instant_is_counted(index: Index) -> None:
    index.take(JOBS)
    index.take(batch(ended("c", at=NOON + 20), failed("b", "retried", at=NOON + 21), ended("gone", at=NOON + 22)))
    index.take(batch(failed("a", at=NOON + 23), ended("a", at=NOON + 24)))

    assert index.ends([*"abcde"], since=NOON + 20) == {"done": 2}
    assert index.ends([*"abcde"], since=NOON + 2) == {"done": 3, "discarded": 1, "cancelled": 1}
    assert index.ends([], since=0.0) == {}
