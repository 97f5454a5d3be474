"""Batches of the journal, and which records are written at which level."""

import pytest

from palermo.core.journal import Kind, Level, decode, encode, is_wanted

RECORD = {"kind": "failed", "at": 1.5, "id": "7", "job": "ü", "queue": "jobs", "news": [1]}


def test_a_batch_comes_back_as_it_was_with_what_this_version_does_not_know() -> None:
    later = {"kind": "a kind of a later version", "at": 2}

    batch = decode(7, encode("pid:1@h", [RECORD, later], source="abc", number=3))

    assert (batch.position, batch.writer, batch.source, batch.number) == (7, "pid:1@h", "abc", 3)
    assert list(batch.records) == [RECORD, later]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 2, "records": [{"kind": "a", "at": 1}]}',
        b'{"version": "1", "records": []}',
        b'{"version": 1, "records": {"kind": "a"}}',
        b'{"version": 1, "records": [1, {"kind": "a"}, {"at": 1}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_batch_holds_no_records(body: bytes) -> None:
    assert list(decode(0, body).records) == []


def test_odd_fields_of_a_batch_do_no_harm() -> None:
    batch = decode(0, b'{"version": 1, "writer": 3, "source": [], "number": "x", "records": [{"kind": "a", "at": 1}]}')
    assert (batch.writer, batch.source, batch.number, len(batch.records)) == ("", "", 0, 1)


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        *((kind, {Level.ALL}) for kind in (Kind.ENQUEUED, Kind.STARTED, Kind.SUCCEEDED, Kind.SNOOZED, Kind.RELEASED)),
        (Kind.LIMITED, {Level.ALL}),
        *((kind, {Level.ALL, Level.FAILURES}) for kind in (Kind.FAILED, Kind.RETRIED, Kind.DISCARDED, Kind.CANCELLED)),
        *((kind, {Level.ALL, Level.FAILURES}) for kind in (Kind.COUNTS, Kind.WORKER_UP, Kind.WORKER_DOWN)),
        *(
            (kind, {Level.ALL, Level.FAILURES})
            for kind in (Kind.PROGRESS, Kind.LOG, Kind.FIRED, Kind.ACTION, Kind.LOST)
        ),
    ],
)
def test_levels(kind: Kind, levels: set[Level]) -> None:
    assert {level for level in Level if is_wanted(kind, level)} == levels
