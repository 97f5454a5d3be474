"""The outcomes that a worker remembers of jobs whose deliveries were lost."""

import pytest
from msgspec.structs import replace

from palermo.core.failure import Failure
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message
from palermo.worker.parent.outcomes import KEEP_FOR, MAX_OUTCOMES, Outcome, Outcomes, fingerprint, result_in

MESSAGE = Message(id="1", queue="q", job="j", body=b"[1]", created_at=1)
OUTCOME = Outcome(job="j", queue="q", result=Succeeded(), mark="m", slot="w", began_at=1.0, ended_at=2.0)
FAILURE = Failure(exception_class="ValueError", message="x", stack_trace="…", failed_at=1)


@pytest.mark.parametrize(
    "result",
    [Succeeded(), Raised(FAILURE), Cancelled(), Retrying(FAILURE, 2.5), Retrying(None, 0.0), Dropped("x")],
    ids=["done", "failed", "cancelled", "retrying", "snoozing", "discarded"],
)
def test_another_worker_reads_the_result_as_it_was(result: Result) -> None:
    answer = replace(OUTCOME, result=result, saved="place").answer()

    assert result_in(answer) == result
    assert answer["saved"] == "place"


@pytest.mark.parametrize("answer", [{}, {"state": "running"}, {"state": "failed"}, {"state": "interrupted"}])
def test_an_answer_without_a_result_gives_none(answer: dict[str, str]) -> None:
    assert result_in(answer) is None


@pytest.mark.parametrize(
    "change", [{"retries": 1}, {"run_at": 9.5}, {"created_at": 2}, {"body": b"[2]"}, {"job": "k"}, {"id": "2"}]
)
def test_another_message_of_the_same_id_has_another_mark(change: dict[str, object]) -> None:
    assert fingerprint(replace(MESSAGE, **change)) != fingerprint(MESSAGE)  # type: ignore[arg-type]
    assert fingerprint(replace(MESSAGE, queue="another")) == fingerprint(MESSAGE)


def test_lost_outcomes_are_bounded_and_kept_for_a_while() -> None:
    now = 0.0
    outcomes = Outcomes(now=lambda: now)
    for number in range(MAX_OUTCOMES + 1):
        outcomes.keep(str(number), OUTCOME)
    assert outcomes.find("0") is None
    assert len(outcomes.lost) == MAX_OUTCOMES

    now = KEEP_FOR + 1
    outcomes.keep("1", replace(OUTCOME, result=Cancelled()))
    outcomes.keep("2", replace(OUTCOME, result=Interrupted()))

    assert outcomes.lost == ("1",)


def test_a_lost_outcome_is_found_until_the_job_has_run_again() -> None:
    outcomes = Outcomes()
    outcomes.keep("1", OUTCOME)
    outcomes.ended(MESSAGE, Succeeded(), settled=False)
    assert outcomes.find("1") == OUTCOME

    outcomes.ended(MESSAGE, Succeeded(), settled=True)

    assert outcomes.lost == ()
    assert outcomes.known(["1", "2"]) == {"1"}
    found = outcomes.find("1")
    assert found is not None
    assert found.answer() == {"state": "done", "job": "j", "queue": "q", "settled": True}
