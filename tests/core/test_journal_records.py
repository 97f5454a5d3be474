"""Batches of the journal, and which records are written at which level."""

import json

import pytest

from palermo.core.journal_records import JournalLevel, RecordKind, decode, encode, encode_record, is_recorded, names_any

RECORD = {"kind": "failed", "at": 1.5, "id": "7", "job": "ü", "queue": "jobs", "news": [1]}


def test_a_batch_comes_back_as_it_was_with_what_this_version_does_not_know() -> None:
    later = {"kind": "a kind of a later version", "at": 2}

    batch = decode(7, encode("pid:1@h", [*map(encode_record, (RECORD, later))], source="abc", number=3))

    assert (batch.position, batch.writer, batch.source, batch.number) == (7, "pid:1@h", "abc", 3)
    assert list(batch.records) == [RECORD, later]


@pytest.mark.parametrize(
    "value", ["half a pair: \ud83d", 2**70, -(2**70), {1: "a"}, {None: "a"}, (1, 2), RecordKind.FAILED]
)
def test_a_batch_keeps_every_value_that_json_can_write(value: object) -> None:
    record = {"kind": "action", "at": 1.5, "value": value}

    (back,) = decode(7, encode("pid:1@h", [encode_record(record)])).records

    assert back == json.loads(json.dumps(record))


@pytest.mark.parametrize("id", ["7", "a-7@mail", "zwölf", 'qu"ote', "a/b", "<a&b>", "a+b", "new\nline", ""])
def test_a_batch_that_names_an_id_is_told_by_its_bytes(id: str) -> None:
    action = {"kind": "action", "at": 2, "ids": ["x", id]}

    assert names_any([id])(encode("pid:1@h", [encode_record(RECORD | {"id": id})]))
    assert names_any(["none", id])(encode("pid:1@h", [encode_record(action)]))
    assert not names_any(["8", "a-8"])(encode("pid:1@h", [encode_record(RECORD), encode_record(action)]))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xff", b"[]", b"{}", b"[" * 100_000),
        b'{"version": 2, "records": [{"kind": "a", "at": 1}]}',
        b'{"version": "1", "records": []}',
        b'{"version": 1, "records": {"kind": "a"}}',
        b'{"version": 1, "records": [1, {"kind": "a"}, {"at": 1}]}',
    ],
)
def test_what_is_no_batch_holds_no_records_and_odd_fields_do_no_harm(body: bytes) -> None:
    assert list(decode(0, body).records) == []
    batch = decode(0, b'{"version": 1, "writer": 3, "source": [], "number": "x", "records": [{"kind": "a", "at": 1}]}')
    assert (batch.writer, batch.source, batch.number, len(batch.records)) == ("", "", 0, 1)


#: What is written at the level `all` alone.
DETAILS = {"enqueued", "started", "succeeded", "snoozed", "released", "limited", "published"}


@pytest.mark.parametrize("kind", RecordKind)
def test_failures_leave_out_the_steps_of_a_job_that_goes_well(kind: RecordKind) -> None:
    levels = {level for level in JournalLevel if is_recorded(kind, level)}

    assert levels == {JournalLevel.ALL} | (set() if kind in DETAILS else {JournalLevel.FAILURES})
