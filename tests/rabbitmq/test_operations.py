"""What is no question to the leader is refused, and a reply may be an error."""

from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.rpc import Part
from palermo.brokers.rabbitmq.leadership.operations import ChangeRecurring, FreeKeys, Operation, from_plain
from palermo.contract.recurring_entries import EntryChange
from palermo.errors import NotFound, OptionInvalid, PublishRefused


@pytest.mark.parametrize(
    ("operation", "error", "name"),
    [
        (FreeKeys([]), PublishRefused, "refused"),
        (ChangeRecurring(EntryChange(name="n", action="run")), NotFound, "missing"),
    ],
)
def test_a_reply_may_be_an_error(operation: Operation[Any], error: type[Exception], name: str) -> None:
    with pytest.raises(error, match="why"):
        operation.reply_from_parts([Part({name: "why"})])


@pytest.mark.parametrize("plain", [{}, {"ask": "keys"}, {"ask": ["keys"]}, {"ask": "keys", "do": "free", "names": 1}])
def test_a_question_that_means_nothing_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such operation"):
        from_plain(plain)


@pytest.mark.parametrize("rate", ["often", "1/0s"])
def test_a_question_about_a_rate_that_means_nothing_is_refused(rate: str) -> None:
    question = {"ask": "limits", "do": "ask", "key": "k", "limit": 1, "id": "a", "worker": "b"}
    assert from_plain(question)

    with pytest.raises(OptionInvalid, match="rate"):
        from_plain({**question, "rate": rate})
