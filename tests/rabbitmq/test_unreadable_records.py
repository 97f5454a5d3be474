"""Readers of Palermo's own streams and queues skip and count what they cannot read, and leaders refuse it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palermo.brokers.rabbitmq.amqp.messages import read_json
from palermo.brokers.rabbitmq.amqp.unreadable import Unreadable
from palermo.brokers.rabbitmq.browsing import failed_log
from palermo.brokers.rabbitmq.browsing.failed_log import FailedOffsets
from palermo.brokers.rabbitmq.cluster.cancels import Cancels
from palermo.brokers.rabbitmq.cluster.facts import FactState, fact
from palermo.brokers.rabbitmq.consuming.run_log import View
from palermo.brokers.rabbitmq.consuming.silent_workers import _worker
from palermo.brokers.rabbitmq.leadership.fair_scheduler import _parse_tenant_queue
from palermo.brokers.rabbitmq.leadership.operations import (
    FORMAT,
    AsJson,
    ChangeRecurring,
    FreeKeys,
    LeaderFailed,
    Operation,
    read,
    read_reply,
    write_error,
)
from palermo.brokers.rabbitmq.publishing.ledger_records import Batch, LedgerState, NewerFormat
from palermo.brokers.rabbitmq.unique.run_ends import RunEnd
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.worker_info import WorkerInfo
from palermo.core.due_times import Bucket
from palermo.core.journal_records import decode
from palermo.core.message import Message
from palermo.core.unique_keys import Key
from palermo.errors import NotFound, PalermoError, PublishRefused

#: Any JSON value, and those that break readers most: numbers that no date shows, names that no queue has, lone
#: surrogates.
_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["x\n", "\ud800", "a" * 300, "1" * 5_000, "~all", 10**400, -1, 1e300, 2**70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

_ANY_BYTES = st.binary(max_size=50) | st.just(b"[" * 100_000) | _VALUE.map(lambda value: json.dumps(value).encode())

_WORKER = {"id": "pid:1@h", "host": "h", "pid": 1, "queues": ["jobs"], "slots": 1, "state": "idle", "started_at": 5.0}
_MESSAGE = {"id": "a", "content_type": "", "content_encoding": "", "headers": {}, "body": ""}

#: By reader: records that it understands.
_GOOD: dict[str, list[dict[str, Any]]] = {
    "facts": [
        fact("queue", "mail", True),
        {**fact("queue", "mail", True), "again": True},
        fact("queue", "mail", None),
        fact("pause", "mail", {"by": "me", "at": 5}),
        fact("group", "g", {"group": "g", "queue": "q", "topics": ["a"], "since": 5.0}),
        fact("unique job", "a", {"job": "a", "options": {"unique": "until_done"}, "parameters": [["x", 1, 2]]}),
        fact("of a later version", "a", 7) | {"format": 2, "more": [1]},
    ],
    "cancels": [{"cancel": ["a"], "at": 5, "by": "me", "created-at": 5}, {"forget": {"a": 5}}, {"restore": ["a"]}],
    "starts": [
        {
            "worker": "pid:1@h",
            "since": 5.0,
            "at": 6.0,
            "inbox": "palermo.~worker.1",
            "runs": ["a"],
            "queues": ["jobs"],
            "jobs": {"a": ["j", "jobs", 5.0, None]},
            "blames": {"a": {"w": "w"}},
            "forgets": ["b"],
            "counters": {"slots": 1, "processed": 1, "failed": 0},
        }
    ],
    "failed-log": [{"queue": "failed", "gone": [["a", 5]]}, {"queue": "failed", "emptied": True}],
    "journal": [
        {"version": 1, "writer": "w", "source": "s", "number": 1, "records": [{"kind": "failed", "at": 5, "id": "a"}]}
    ],
    "unique": [
        {
            "format": 1,
            "n": 1,
            "by": "l",
            "set": {"k": {"name": "k", "serial": 1}},
            "jobs": [_MESSAGE],
            "refused": ["a"],
        },
        {"format": 1, "n": 2, "by": "l", "set": {"k": None}, "floor": 2},
    ],
    "run ends": [{"key": "k", "id": "a", "how": "done", "serial": 1, "starts": 1, "run_at": 5.0, "at": 5.0}],
    "recurring": [
        RecurringEntry(
            recurring=RecurringJob(name="a", job="j", every=60.0),
            message=Message(id="a", job="j", queue="q"),
            origin="runtime",
            since=5.0,
        ).to_plain()
    ],
    "later": [{"made": "day.1"}],
    "tenants": [{"made": ["mail", "a"]}],
    "the answers of workers": [
        {**_WORKER, "jobs": [{"id": "a", "job": "j", "queue": "q", "slot": 1, "started_at": 5.0}]}
    ],
}


class _Readers:
    """One reader of each kind, with what it has read."""

    def __init__(self) -> None:
        self.view, self.content, self.offsets = View(), LedgerState(Key.from_plain), FailedOffsets()
        self.facts, self.cancels = FactState(), Cancels()
        self.batches = [decode(0, b"")]

    def read(self, source: str, record: Any) -> None:
        match source:
            case "facts":
                self.facts.apply(record)
            case "cancels":
                self.cancels.apply(record)
            case "starts":
                self.view.add(record)
                for seen in self.view.seen.values():
                    _worker(seen)
            case "failed-log":
                failed_log._learn(self.offsets, record)
            case "journal":
                self.batches.append(decode(0, json.dumps(record).encode()))
            case "unique":
                self.content.take(Batch.from_plain(record))
            case "run ends":
                RunEnd.from_plain(record)
            case "recurring":
                RecurringEntry.from_plain(record)
            case "later":
                Bucket.parse(record["made"])
            case "tenants":
                _parse_tenant_queue(record["made"])
            case "the answers of workers":
                WorkerInfo.from_plain(record)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_record_with_a_number_that_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="finite"):
        read_json(f'{{"at": {number}}}'.encode())


@st.composite
def _spoilt(draw: st.DrawFn) -> tuple[str, bytes]:
    """The source and the bytes of a record that is like a good one but for some values; or any bytes."""
    source = draw(st.sampled_from(sorted(_GOOD)))
    if draw(st.integers(0, 9)) == 0:
        return source, draw(_ANY_BYTES)
    record = draw(st.sampled_from(_GOOD[source]))
    return source, json.dumps(_with_odd(draw, record, first=True)).encode()


def _with_odd(draw: st.DrawFn, value: Any, *, first: bool = False) -> Any:
    if not first and draw(st.integers(0, 4)) == 0:
        return draw(_VALUE)
    if isinstance(value, dict):
        return {name: _with_odd(draw, one) for name, one in value.items()}
    return [_with_odd(draw, one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("added", [{}, {"format": 99, "later": {"a": [1]}}], ids=["now", "in a later format"])
@pytest.mark.parametrize("source", sorted(_GOOD))
def test_each_reader_understands_what_palermo_writes(source: str, added: dict[str, Any]) -> None:
    unreadable, readers = Unreadable(), _Readers()
    for record in _GOOD[source]:
        unreadable.take(source, json.dumps(record | added).encode(), lambda one: readers.read(source, one))

    assert unreadable.counts == {}
    assert [batch.unreadable for batch in readers.batches[1:]] == [0] * (source == "journal")


#: What a leader writes into `~unique`, the end of a run, and the state of a recurring job.
_SOUND = {"z": {"name": "z", "serial": 1, "closed": {"until": 1.0, "id": "x"}}}
_BATCH = {"format": 1, "n": 9, "by": "x", "set": _SOUND}
_HOLDER = {
    **dict.fromkeys(("id", "call", "job", "queue"), "a"),
    **dict.fromkeys(("serial", "starts", "since"), 1),
    "mode": "until_done",
    "phase": "running",
}
_END = _GOOD["run ends"][0]
_STATE = _GOOD["recurring"][0]


def _key(**odd: Any) -> dict[str, Any]:
    return {**_BATCH, "set": {"k": {"name": "k", "serial": 1, "holder": _HOLDER, **odd}} | _SOUND}


#: Records with one value that no version of Palermo writes.
_ODD: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("unique", _key(**odd)) for odd in ({"serial": []}, {"due": "x"}, {"closed": {"until": "x", "id": "a"}})),
    *(
        ("unique", _key(holder={**_HOLDER, **odd}))
        for odd in ({"until": "x"}, {"starts": "x"}, {"since": None}, {"content": []}, {"run_at": {}})
    ),
    ("unique", _key(ended=[{"id": "a", "call": "c", "until": "x"}])),
    *(
        ("unique", {**_BATCH, **odd})
        for odd in ({"set": {"k": []} | _SOUND}, {"jobs": [1, {"id": "z"}]}, {"floor": "x"})
    ),
    ("unique", {**_BATCH, "refused": 1}),
    *(("run ends", {**_END, **odd}) for odd in ({"at": "x"}, {"starts": "x"}, {"run_at": []}, {"how": 7}, {"key": []})),
    *(("recurring", {**_STATE, "since": odd}) for odd in (1e300, -1.0, "nan", [])),
    ("recurring", {**_STATE, "last_run": float("nan")}),
    *(("recurring", {**_STATE, "message": {**_STATE["message"], "content_type": odd}}) for odd in (7, None)),
    ("recurring", {**_STATE, "message": {**_STATE["message"], "headers": [1]}}),
    ("recurring", {**_STATE, "message": {**_STATE["message"], "properties": {"correlation_id": 7}}}),
    ("recurring", {**_STATE, "recurring": {**_STATE["recurring"], "every": 1e-9}}),
)


@pytest.mark.parametrize(("source", "record"), _ODD)
def test_a_record_with_a_value_of_another_type_is_skipped(source: str, record: dict[str, Any]) -> None:
    unreadable, readers = Unreadable(), _Readers()

    unreadable.take(source, json.dumps(record).encode(), lambda one: readers.read(source, one))

    if source == "unique":  # its reader skips each key and each job by itself
        left = list(readers.content.states())
        assert (left, readers.content.unstored_jobs()) == ([] if record.keys() & {"floor", "refused"} else ["z"], {})
    else:
        assert unreadable.counts == {source: 1}


def test_a_value_that_is_nested_too_deep_to_be_shown_is_counted() -> None:
    unreadable, value = Unreadable(), list[Any]()
    for _ in range(100_000):
        value = [value]

    unreadable.skip("facts", value, "no object")

    assert unreadable.counts == {"facts": 1}


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(_spoilt(), max_size=4))
def test_no_bytes_in_an_internal_stream_end_its_reader(records: list[tuple[str, bytes]]) -> None:
    unreadable, readers = Unreadable(), _Readers()
    for source, body in records:
        unreadable.take(source, body, lambda record, source=source: readers.read(source, record))  # type: ignore[misc]

    # What is read after them can be used: names that AMQP takes, and times that a date shows.
    for source, good in _GOOD.items():
        if source != "unique":
            for record in good:
                readers.read(source, record)
    for name in (
        *readers.facts.queues,
        *readers.facts.paused.names,
        *(seen.inbox for seen in readers.view.seen.values()),
    ):
        assert 1 <= len(name.encode()) <= 255
    assert all(0 <= record["at"] < 2**33 for batch in readers.batches for record in batch.records)
    assert all(isinstance(job, Message) for job in readers.content.unstored_jobs().values())
    assert all(isinstance(key, Key) for key in readers.content.states().values())


# -- requests to a leader, and its replies


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (FreeKeys([]), PublishRefused("why")),
        (ChangeRecurring(AsJson(EntryChange(name="n", action="run"))), NotFound("why")),
        (FreeKeys([]), LeaderFailed("why")),
    ],
)
def test_a_reply_may_be_an_error(operation: Operation[Any], error: PalermoError) -> None:
    with pytest.raises(type(error), match="why"):
        read_reply(operation, write_error(error, operation.raises))


_PERMIT = {"ask": "RequestPermit", "demand": {"key": "k", "limit": 1}, "id": "a", "worker": "b"}


@pytest.mark.parametrize(
    "plain",
    [
        *({}, {"ask": "keys"}, {"ask": ["FreeKeys"]}, {"ask": "FreeKeys", "names": 1}),
        *({**_PERMIT, "demand": {"key": "k", "rate": rate}} for rate in ("often", {"count": 0, "period": 1})),
    ],
)
def test_a_request_that_means_nothing_is_refused(plain: dict[str, Any]) -> None:
    assert read(json.dumps(_PERMIT).encode())

    with pytest.raises(ValueError, match=r"Expected|Invalid|missing"):
        read(json.dumps(plain).encode())


def test_unknown_fields_are_ignored_and_a_newer_format_is_noticed() -> None:
    assert read(json.dumps({**_PERMIT, "colour": "red"}).encode()) == read(json.dumps(_PERMIT).encode())

    for plain in ({**_PERMIT, "id": 7}, {"ask": "Paint"}, _PERMIT):
        with pytest.raises(NewerFormat):
            read(json.dumps({**plain, "format": FORMAT + 1}).encode())
