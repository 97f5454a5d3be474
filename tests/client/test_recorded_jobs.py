"""A job's arguments and options in the journal, and the job that is read back from its record."""

import json
from typing import Any

import pytest

from palermo.client.recorded_jobs import RecordedArguments, RecordedJob, read_recorded
from palermo.core.message import Message
from palermo.jobs.redaction import MASK
from palermo.settings.settings import Settings


def message(body: object, **more: Any) -> Message:
    values = {"job": "shop.charge", "queue": "mail", "preview": "1", **more}
    return Message(id="a", body=body if isinstance(body, bytes) else json.dumps(body).encode(), **values)


def recorder(*parameters: str, **settings: Any) -> RecordedArguments:
    return RecordedArguments(Settings(url="sqlite:///jobs.db", **settings), lambda _: parameters)


def read(fields: dict[str, Any]) -> RecordedJob:
    # A record is JSON on its way.
    return read_recorded("a", "shop.charge", "mail", json.loads(json.dumps(fields)))


def test_a_job_is_read_back_as_it_was_enqueued() -> None:
    sent = message(
        {"args": [1], "kwargs": {"to": "é"}},
        arguments="both",
        timeout=30.0,
        max_retries=2,
        tenant="acme",
        created_at=100,
        expires_at=160.0,
        properties={"priority": 4},
        extra={"limit": 3, "limit-key": "shop.charge:x", "traceparent": "00-1", "recurring": "nightly"},
    )

    found = read(recorder().fields(sent))

    assert (found.inexact, found.readable, found.expires) == ("", True, 60.0)
    back = found.message
    for name in ("id", "job", "queue", "body", "arguments", "timeout", "max_retries", "tenant", "priority"):
        assert getattr(back, name) == getattr(sent, name), name
    assert back.extra == {"limit": 3, "limit-key": "shop.charge:x", "recurring": "nightly"}


@pytest.mark.parametrize(
    ("body", "arguments", "parameters"),
    [
        ([{"password": "hunter2", "to": "anna"}], "", ()),
        ([{"nested": [{"PassWord": "hunter2"}]}], "", ()),
        (b'[{"pass\\u0077ord": "hunter2"}]', "", ()),
        ({"password": "hunter2"}, "", ()),
        (["anna", "hunter2"], "", ("user", "password")),
        ({"args": ["anna", "hunter2"], "kwargs": {"x": 1}}, "both", ("user", "password", "x")),
    ],
)
def test_hidden_values_are_never_written(body: object, arguments: str, parameters: tuple[str, ...]) -> None:
    fields = recorder(*parameters).fields(message(body, arguments=arguments))

    assert "hunter2" not in json.dumps(fields)
    found = read(fields)
    assert found.inexact == "hidden"
    assert MASK in str(json.loads(found.message.body))


def test_a_value_that_only_looks_like_a_hidden_name_is_recorded_exactly() -> None:
    assert recorder().fields(message(["my key"])) == {"body": '["my key"]'}
    assert recorder(web_redact=()).fields(message({"password": "x"})) == {"body": '{"password": "x"}'}


def test_arguments_that_are_too_long_leave_their_preview_and_size() -> None:
    fields = recorder(journal_arguments=10).fields(message(["x" * 50], preview="'xxx'"))

    assert fields == {"inexact": "shortened", "preview": "'xxx'", "size": 54}
    assert not read(fields).readable
    hidden = recorder("password", journal_arguments=10).fields(message(["hunter2hunter2"], preview="'hunter2…'"))
    assert "hunter2" not in json.dumps(hidden)
    assert recorder(journal_arguments=0).fields(message([1], tenant="acme")) == {}


def test_other_formats_are_recorded_as_json_and_unsafe_ones_as_preview() -> None:
    serializers = Settings(url="sqlite:///jobs.db").serializers()
    packed = serializers.encode([1, "a"], {}, job="shop.charge", id="a", serializer="msgpack")
    other = message(packed.body, content_type=packed.content_type)
    pickled = message(b"\x80\x04.", content_type="application/x-pickle", preview="<Thing>")

    found, unsafe = read(recorder().fields(other)), read(recorder().fields(pickled))

    assert (found.inexact, json.loads(found.message.body)) == ("converted", {"args": [1, "a"], "kwargs": {}})
    assert (unsafe.inexact, unsafe.message.preview, unsafe.message.body) == ("unreadable", "<Thing>", b"")


@pytest.mark.parametrize(
    "fields",
    [
        {"body": 7},
        {"body": "[]", "headers": "no", "priority": "high", "expires": "soon", "arguments": 3},
        {"body": "[]", "headers": {"timeout": "long", "tenant": 3}, "priority": -1, "expires": -1},
        {"inexact": 5},
    ],
)
def test_a_record_with_anything_in_it_is_read(fields: dict[str, Any]) -> None:
    found = read(fields)

    assert (found.message.id, found.message.job, found.message.queue) == ("a", "shop.charge", "mail")
    assert found.message.priority == 0
