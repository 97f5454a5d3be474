"""The outcomes that a worker remembers of jobs whose deliveries were lost."""

import pytest
from msgspec.structs import replace

from palermo.core.failure import Failure
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message
from palermo.worker.parent.outcomes import (
    KEEP_FOR,
    MAX_OUTCOMES,
    Outcome,
    Outcomes,
    fingerprint,
    outcome_from_plain,
    outcome_to_plain,
)

MESSAGE = Message(id="1", queue="q", job="j", body=b"[1]", created_at=1)
OUTCOME = Outcome(message=MESSAGE, result=Succeeded(), slot="w", began_at=1.0, ended_at=2.0)
FAILURE = Failure(exception_class="ValueError", message="x", stack_trace="…", failed_at=1)


@pytest.mark.parametrize(
    "result",
    [Succeeded(), Raised(FAILURE), Cancelled(), Retrying(FAILURE, 2.5), Retrying(None, 0.0), Dropped("x")],
    ids=["done", "failed", "cancelled", "retrying", "snoozing", "discarded"],
)
def test_a_result_is_told_as_it_was(result: Result) -> None:
    assert outcome_from_plain(outcome_to_plain(result)) == result


@pytest.mark.parametrize("told", [{}, {"state": "running"}, {"state": "failed"}, {"state": "interrupted"}])
def test_what_is_no_result_is_none(told: dict[str, str]) -> None:
    assert outcome_from_plain(told) is None


@pytest.mark.parametrize(
    "change", [{"retries": 1}, {"run_at": 9.5}, {"created_at": 2}, {"body": b"[2]"}, {"job": "k"}, {"id": "2"}]
)
def test_another_message_of_the_same_id_has_another_mark(change: dict[str, object]) -> None:
    assert fingerprint(replace(MESSAGE, **change)) != fingerprint(MESSAGE)  # type: ignore[arg-type]
    assert fingerprint(replace(MESSAGE, queue="another")) == fingerprint(MESSAGE)


def test_outcomes_fade_and_are_bounded() -> None:
    now = 0.0
    outcomes = Outcomes(now=lambda: now)
    for number in range(MAX_OUTCOMES + 1):
        outcomes.keep(replace(OUTCOME, message=replace(MESSAGE, id=str(number))))
    assert outcomes.find("0") is None
    assert len(outcomes.ids) == MAX_OUTCOMES

    now = KEEP_FOR + 1
    outcomes.keep(replace(OUTCOME, result=Cancelled()))
    outcomes.keep(replace(OUTCOME, message=replace(MESSAGE, id="2"), result=Interrupted()))

    assert outcomes.ids == ("1",)
