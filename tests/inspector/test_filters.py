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


@pytest.mark.parametrize(
    "wanted",
    [
        FailedFilter(),
        FailedFilter(queue="mail"),
        FailedFilter(queue="m*"),
        FailedFilter(job="shop.mail.Send"),
        FailedFilter(job="shop.*"),
        FailedFilter(error="smtplib.SMTPException"),
        FailedFilter(error="SMTPException"),
        FailedFilter(error="smtplib.*"),
        FailedFilter(text="mailbox full"),
        FailedFilter(text="DELIVER"),
        FailedFilter(text="ann@"),
        FailedFilter(text="7c9e"),
        FailedFilter(since=1_000),
        FailedFilter(since=1_000.9),
        FailedFilter(queue="mail", error="SMTPException", text="full", since=1),
    ],
)
def test_a_filter_matches(wanted: FailedFilter) -> None:
    assert wanted.matches(FAILED)


@pytest.mark.parametrize(
    "wanted",
    [
        FailedFilter(queue="mai"),
        FailedFilter(queue="MAIL"),
        FailedFilter(job="Send"),
        FailedFilter(error="Exception"),
        FailedFilter(error="ValueError"),
        FailedFilter(text="empty"),
        FailedFilter(since=1_001),
        FailedFilter(queue="mail", text="empty"),
    ],
)
def test_a_filter_asks_for_all_of_it_at_once(wanted: FailedFilter) -> None:
    assert not wanted.matches(FAILED)


def test_a_message_without_an_error_matches_only_what_does_not_ask_for_one() -> None:
    waiting = Message(id="1", queue="a[1]", job="a")

    assert FailedFilter(queue="a[1]").matches(waiting)
    assert not FailedFilter(since=1).matches(waiting)
    assert not FailedFilter(error="ValueError").matches(waiting)


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
