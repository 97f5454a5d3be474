"""Messages to headers and back, header by header of docs/internals/wire.md; and values as JSON values and back."""

import inspect
import json
import re
import string
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError
from msgspec.structs import replace

from palermo.contract.events import Subscription
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import RUNTIME, RecurringEntry
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.failure import Attempt, Failure
from palermo.core.header_json import dumps, loads
from palermo.core.message import MAX_HEADERS, Message, fit_headers, from_wire, headers_size, to_headers
from palermo.core.own_headers import MAX_OWN_HEADERS, check_own_headers, is_reserved, own_headers
from palermo.errors import EncodeError, HeadersTooLarge, OptionInvalid, StoreInvalid
from palermo.worker.registered import Registered

FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="Traceback\nValueError: no", failed_at=1_700)


def a_message(**fields: object) -> Message:
    return replace(Message(id="7c9e", queue="mail", job="shop.send", body=b"[1]", created_at=1_600), **fields)  # type: ignore[arg-type]


def read(headers: dict[str, object], **more: Any) -> Message:
    usual = {"message_id": "7c9e", "content_type": None, "content_encoding": None, "body": b"", "taken_from": "mail"}
    return from_wire(headers=headers, new_id=lambda: "fresh", **(usual | more))


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.binary(max_size=20)
    | st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
    | st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
own_names = st.text(string.ascii_letters + string.digits, min_size=1, max_size=20).map("my-{}".format)
seconds = st.none() | st.floats(min_value=0.001, max_value=2e9)
fields = st.fixed_dictionaries(
    {
        "extra": st.dictionaries(own_names, values, max_size=5),
        "preview": st.none() | st.text(st.characters(codec="utf-8"), max_size=100),
        "failure": st.none() | st.just(FAILURE),
        **dict.fromkeys(("timeout", "expires_at", "retrying_since", "queued_at"), seconds),
    }
)


@pytest.mark.slow
@given(fields, st.none() | st.integers(0, 99))
def test_a_message_comes_back_equal_from_its_headers(fields: dict[str, Any], retries: int | None) -> None:
    attempts = (Attempt.of(FAILURE, retries),) if retries else ()
    message = a_message(**fields, retries=retries, max_retries=retries, attempts=attempts)
    queue, kind = "failed" if fields["failure"] else "mail", message.content_type

    assert read(to_headers(message), body=message.body, content_type=kind, taken_from=queue) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("created-at", "yesterday"), ("created-at", True), ("retries", 1.5), ("retries", "1"), ("job-class", 7)),
        *(("job-class", None), ("queue", ["mail"]), ("preview", b"raw"), ("arguments", 1), ("timeout", "30")),
        *(("timeout", True), ("timeout", 0), ("timeout", float("inf")), ("timeout", 10**400), ("expires-at", None)),
        *(("expires-at", "tomorrow"), ("max-retries", "3"), ("keep-result", 1), ("retrying-since", -1)),
        ("attempts-log", "none"),
    ],
)
def test_a_known_header_of_the_wrong_type_is_named_and_kept_as_it_came(name: str, value: object) -> None:
    message = read({"job-class": "shop.send", name: value})

    assert name in message.defect
    assert message.extra[name] == value


@pytest.mark.parametrize(
    ("headers", "message_id", "id"),
    [
        ({"id": "header"}, "7c9e", "7c9e"),
        ({"id": "header"}, None, "header"),
        ({}, None, "fresh"),
        ({"id": 12}, None, "fresh"),
    ],
)
def test_the_property_message_id_beats_the_header(headers: dict[str, object], message_id: str | None, id: str) -> None:
    message = read({"job-class": "shop.send", **headers}, message_id=message_id)

    assert message.id == id
    assert ("'id'" in message.defect) == (headers.get("id") == 12)


def test_the_queue_it_was_taken_from_wins_except_in_failed() -> None:
    assert read({"queue": "elsewhere"}).queue == "mail"
    assert read({"queue": "elsewhere"}, taken_from="failed").queue == "elsewhere"
    assert read({}, taken_from="failed").queue == "jobs"


def test_what_only_a_first_publication_may_carry_is_stripped() -> None:
    for name in ("x-death", "x-first-death-queue", "x-last-death-reason", "CC", "BCC", "x-delivery-count"):
        headers = to_headers(a_message(extra={name: [{"queue": "q"}], "x-mine": 1}))
        assert (name in headers, headers["x-mine"]) == (False, 1)


def test_retries_and_a_failure_are_those_of_a_failed_job() -> None:
    message = read({"exception-class": "java.lang.Error", "retries": 0}, taken_from="failed")

    assert "retries" not in to_headers(a_message())
    assert to_headers(a_message(retries=0))["retries"] == 0
    assert [a_message(retries=n).attempt for n in (None, 0, 1, 4)] == [1, 1, 2, 5]
    assert message.failure == Failure(exception_class="java.lang.Error", message="", stack_trace="", failed_at=0)


def test_a_failed_message_is_cut_until_its_headers_fit_one_frame() -> None:
    failure = replace(FAILURE, stack_trace="é" * 8_000, message="m" * 2_000)
    message = a_message(failure=failure, extra={"big": "x" * (MAX_HEADERS - 5_000)})

    fitted = fit_headers(message)

    assert headers_size(to_headers(fitted)) <= MAX_HEADERS
    assert fitted.extra["big"] == message.extra["big"]
    assert fitted.failure is not None
    assert len(fitted.failure.stack_trace) < 8_000


@pytest.mark.parametrize("name", ["run-at", "perform_job_at"])
@pytest.mark.parametrize(
    "value",
    [
        *(1_790_000_000, 1_790_000_000.0, 1_790_000_000_000, "1790000000", " 1790000000.0 ", "1790000000000"),
        *("2026-09-21T14:13:20Z", "2026-09-21T16:13:20+02:00", "20260921T141320Z", "2026-09-21 14:13:20.000+00:00"),
        datetime.fromtimestamp(1_790_000_000, UTC),
    ],
)
def test_an_instant_is_read_however_a_program_could_mean_it(name: str, value: object) -> None:
    message = read({"job-class": "a", name: value})

    assert (message.run_at, message.defect) == (1_790_000_000.0, "")


@pytest.mark.parametrize("name", ["run-at", "perform_job_at"])
@pytest.mark.parametrize(
    "value",
    [
        *(True, False, None, 1e300, 10**400, float("nan"), float("inf"), -1, 2**33, 2**63, b"1790000000", [], {}),
        *("", "soon", "nan", "inf", "-5", "1e9", "1_790_000_000", "0x10", "9" * 5_000, "٣", "tomorrow 12:00"),
        *("2026-09-21T13:33:20", "2026-09-21", "13:33", "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z"),
        datetime.fromtimestamp(2**34, UTC),
    ],
)
def test_a_job_whose_time_means_nothing_fails_and_does_not_run_at_once(name: str, value: object) -> None:
    message = read({"job-class": "a", name: value})

    assert (message.run_at, message.extra) == (None, {name: value})
    assert message.defect.startswith(f"header '{name}' is ")
    assert "ISO 8601" in message.defect


def test_headers_that_leave_no_room_are_dropped_of_a_failed_job_or_refused() -> None:
    large = {"huge": "x" * 200_000, "small": "kept"}

    fitted = fit_headers(a_message(failure=FAILURE, extra=large))

    assert fitted.extra == {"small": "kept", "dropped-headers": "huge"}
    with pytest.raises(HeadersTooLarge, match="the maximum is 126968"):
        fit_headers(a_message(extra=large))


# -- header values in the file: whatever a header may hold comes back the same


ANY_TEXT = st.text(st.characters())
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes().map(lambda at: at.replace(fold=0))
    | st.datetimes().map(lambda at: at.replace(fold=0, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT | st.just("$"), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.dictionaries(ANY_TEXT | st.just("$"), VALUES))
def test_every_value_comes_back_the_same(values: dict[str, Any]) -> None:
    text = dumps(values)

    assert text.isascii()
    assert repr(loads(text)) == repr(values)


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**20_000), float("inf"), -0.0, Decimal("NaN"), {"$": "bytes", "v": "AA=="}, {"$": {"$": 1}}, "\0\ud800"],
    ids=range(8),
)
def test_odd_values_come_back_the_same(value: Any) -> None:
    (found,) = loads(dumps({"odd": value})).values()

    assert (type(found), found == value or str(found) == str(value)) == (type(value), True)


@pytest.mark.parametrize("value", [object(), {1, 2}, {1: "a"}, 1j], ids=["object", "set", "number as name", "complex"])
def test_what_no_header_can_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(EncodeError, match=r"header \['tenant'\]\[0\]"):
        dumps({"tenant": [value]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError, match="nested too deeply"):
        dumps({"endless": endless})


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":{"$":"moon"}}', '{"a":{"$":"decimal","v":"x"}}', '{"a":{"$":"int"}}']
)
def test_headers_changed_by_hand_are_said_to_be_unreadable(text: str) -> None:
    with pytest.raises(StoreInvalid, match="headers of a message"):
        loads(text)


# -- headers of one's own: which names and values can travel with a job


ROOT = Path(__file__).parents[2]


def test_text_numbers_and_bools_travel_and_only_they_are_shown() -> None:
    given = {"request-id": "ü", "X-Shard": 7, "weight": 0.5, "trial": True, "most": 2**63 - 1}

    assert check_own_headers(given) == given
    assert own_headers({"parent-id": "p", "x-death": [], "traceparent": "0", **given}) == given


_USED = ("queue", "Tenant", "parent-id", "tick", "limit", "unique", "x-death", "X-Death", "CC")


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        *(({name: "x"}, f"header '{name}' is reserved for Palermo or RabbitMQ") for name in _USED),
        *(({name: "x"}, "must be 1 to 128 bytes of printable text") for name in ("", "a\n", "n" * 129, 7)),
        *(
            ({"x": value}, r"header 'x' is .*; give text, a number or a bool")
            for value in (None, b"x", ["x"], {"a": 1}, float("nan"), 2**63)
        ),
        ({f"header-{number}": "x" * 100 for number in range(20)}, f"the maximum is {MAX_OWN_HEADERS:,}"),
        ("request-id=7", "is not a dict"),
    ],
)
def test_headers_that_cannot_travel_are_refused(headers: object, told: str) -> None:
    with pytest.raises(OptionInvalid, match=told):
        check_own_headers(headers)


def test_every_header_of_the_wire_format_is_refused() -> None:
    wire = (ROOT / "docs" / "internals" / "wire.md").read_text()
    rows = re.findall(r"^\| .*?headers? ((?:`[a-z_-]+`(?:, )?)+) \|", wire, re.MULTILINE)
    failed = re.findall(r"^\| `([a-z-]+)` \|", wire[wire.index("## A failed job") :], re.MULTILINE)
    documented = {*failed, *(name for row in rows for name in re.findall(r"`([a-z_-]+)`", row))}

    assert {"tenant", "recurring", "unique-linger", "traceparent", "stack-trace"} <= documented
    assert {name for name in documented if not is_reserved(name)} == set()


UNIQUE = UniqueJob.of("shop.mail", {"unique": "until_done"}, inspect.signature(lambda to, copies=1: None))


def test_the_registration_of_a_worker_survives_the_way_to_its_parent() -> None:
    registered = Registered(
        jobs=("shop.mail",),
        queues=("mail",),
        hooks=frozenset({"before_fork", "after_fork"}),
        timeouts={"shop.mail": 9.0},
        prioritized=frozenset({"mail"}),
        batches={"shop.sum": (100, 1.0)},
        unique=(UNIQUE,),
        recurring=(
            RecurringEntry(
                recurring=RecurringJob(name="n", job="shop.mail", every=60.0),
                message=Message(id="n", queue="mail", job="shop.mail", body=b"\xff", properties={"priority": 7}),
                origin=RUNTIME,
                since=5.0,
            ),
        ),
        subscriptions=((Subscription(group="g", queue="q", topics=("a.*",)), True),),
    )

    assert Registered.from_plain(json.loads(json.dumps(registered.to_plain()))) == registered


@pytest.mark.parametrize("odd", [{"parameters": [["to", 9]]}, {"parameters": [["1to", 0]]}, {"options": 3}, {"job": 3}])
def test_an_announcement_that_no_worker_wrote_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        UniqueJob.from_plain({**UNIQUE.to_plain(), **odd})
