from typing import Any

import pytest

from palermo.contract.scheduled import ScheduledFilter
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.errors import OptionInvalid
from palermo.history.filters import AuditFilter, HistoryFilter
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.waiting import WaitingFilter

FAILED = Message(
    id="7c9e",
    queue="mail",
    job="shop.mail.Send",
    preview="'Ann@b.c'",
    failure=Failure(
        exception_class="smtplib.SMTPException", message="Mailbox Full", stack_trace="in deliver", failed_at=1_000
    ),
)


WAITING = Message(id="1", queue="a[1]", job="a")


@pytest.mark.parametrize(
    ("message", "matching", "others"),
    [
        (FAILED, {}, {}),
        (FAILED, {"queue": "mail"}, {"queue": "mai"}),
        (FAILED, {"queue": "m*"}, {"queue": "MAIL"}),
        (FAILED, {"job": "shop.*"}, {"job": "Send"}),
        (FAILED, {"error": "SMTPException"}, {"error": "Exception"}),
        (FAILED, {"error": "smtplib.*"}, {"error": "ValueError"}),
        (FAILED, {"text": "mailbox full"}, {"text": "empty"}),
        (FAILED, {"text": "DELIVER"}, {}),
        (FAILED, {"text": "ann@"}, {}),
        (FAILED, {"text": "7c9e"}, {}),
        (FAILED, {"since": 1_000.9}, {"since": 1_001}),
        (FAILED, {"queue": "mail", "error": "SMTPException", "text": "full"}, {"queue": "mail", "text": "empty"}),
        (WAITING, {"queue": "a[1]"}, {"since": 1}),
        (WAITING, {}, {"error": "ValueError"}),
    ],
)
def test_a_filter_matches_what_meets_all_its_conditions(
    message: Message, matching: dict[str, Any], others: dict[str, Any]
) -> None:
    assert FailedFilter(**matching).matches(message)
    assert not others or not FailedFilter(**others).matches(message)


def test_a_filter_prints_what_it_asks_for() -> None:
    assert str(FailedFilter(queue="mail", text="full")) == "queue='mail' text='full'"
    assert str(FailedFilter(until=1_795_805_730.0, group="6f62")) == "until=2026-11-27T18:55:30Z group='6f62'"
    assert FailedFilter().everything
    assert not FailedFilter(text=" x").everything


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((FailedFilter, name) for name in ("queue", "job", "error", "text", "group", "worker", "tenant")),
        *((ScheduledFilter, name) for name in ("queue", "job")),
        *((WaitingFilter, name) for name in ("job", "text")),
        *((HistoryFilter, name) for name in ("queue", "job", "worker", "error", "text")),
        *((AuditFilter, name) for name in ("by", "action", "queue", "text")),
    ],
)
def test_a_blank_condition_is_refused_by_every_filter(kind: Any, name: str) -> None:
    for blank in ("", " ", "\t\n"):
        with pytest.raises(OptionInvalid, match=f"{name} is blank"):
            kind(**{name: blank})
