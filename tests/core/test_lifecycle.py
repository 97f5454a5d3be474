"""The next step of a job, as a table."""

import pytest
from msgspec.structs import replace

from palermo.core import lifecycle
from palermo.core.failure import Attempt, Failure
from palermo.core.lifecycle import Ack, Fail, JobState, Release, Reschedule, attempts, requeue, settle
from palermo.core.message import Message

FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="", failed_at=1_700)
NOW = 1_800.5
MESSAGE = Message(id="7c9e", queue="mail", job="shop.send", body=b"[1]", extra={"x-mine": 1})


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (lifecycle.Succeeded(), Ack),
        (lifecycle.Succeeded(skipped=True), Ack),
        (lifecycle.Raised(FAILURE), Fail),
        (lifecycle.Interrupted(), Release),
        (lifecycle.Cancelled(), Ack),
        (lifecycle.Retrying(FAILURE, 15.0), Reschedule),
        (lifecycle.Retrying(None, 15.0), Reschedule),
        (lifecycle.Dropped("gone"), Ack),
    ],
)
def test_every_result_calls_for_one_settlement(result: lifecycle.Result, kind: type) -> None:
    settlement = settle(MESSAGE, result, worker="w", now=NOW)

    assert isinstance(settlement, kind)
    if kind is Ack:
        done, cancelled = isinstance(result, lifecycle.Succeeded), isinstance(result, lifecycle.Cancelled)
        assert settlement == Ack(done=done, cancelled=cancelled)


def test_a_failed_copy_keeps_id_body_and_headers_and_adds_the_error() -> None:
    copy = replace(MESSAGE, failure=FAILURE, worker="pid:1@h/worker-1", retries=0)
    raised = lifecycle.Raised(FAILURE)
    one = settle(MESSAGE, raised, worker="pid:1@h/worker-1", now=NOW)
    of_each_queue = settle(MESSAGE, raised, worker="pid:1@h/worker-1", now=NOW, failed_per_queue=True)

    assert one == Fail(copy, queue="failed")
    assert of_each_queue == Fail(copy, queue="failed:mail")


def test_a_requeue_adds_a_retry_and_restarts_the_policy() -> None:
    for before, failed_with in ((None, 0), (0, 0), (1, 1), (7, 7)):
        settlement = settle(replace(MESSAGE, retries=before), lifecycle.Raised(FAILURE), worker="w", now=NOW)
        assert isinstance(settlement, Fail)
        assert (settlement.message.retries, requeue(settlement.message).retries) == (failed_with, failed_with + 1)
    kept = replace(MESSAGE, timeout=30.0)
    times = {"retrying_since": 1.0, "run_at": 2.0, "expires_at": 1.0}
    failed = replace(kept, failure=FAILURE, worker="w", retries=3, policy_retries=3, **times)

    log = (Attempt.of(FAILURE, 4),)
    assert requeue(failed) == replace(kept, retries=4, policy_retries=0, attempts=log)
    assert requeue(failed, queue="slow").queue == "slow"


def test_a_retry_is_counted_twice_due_later_and_says_why_it_waits() -> None:
    first = settle(MESSAGE, lifecycle.Retrying(FAILURE, 15.0), worker="w1", now=NOW)
    assert isinstance(first, Reschedule)

    waits = {"retries": 1, "policy_retries": 1, "retrying_since": NOW, "run_at": NOW + 15}
    assert first.message == replace(MESSAGE, failure=FAILURE, worker="w1", **waits)

    other = replace(FAILURE, message="still no")
    second = settle(first.message, lifecycle.Retrying(other, 30.0), worker="w2", now=NOW + 20)
    assert isinstance(second, Reschedule)
    tried = {"retries": 2, "policy_retries": 2, "run_at": NOW + 50, "attempts": (Attempt.of(FAILURE, 1),)}
    assert second.message == replace(first.message, failure=other, worker="w2", **tried)
    # One that snoozes is the same message later.
    snoozed = settle(second.message, lifecycle.Retrying(None, 9.5), worker="w", now=NOW)
    assert snoozed == Reschedule(replace(second.message, run_at=NOW + 9.5))


def test_every_failed_try_is_known_by_its_number_wherever_the_job_is() -> None:
    message = MESSAGE
    for number in (1, 2, 3):
        again = lifecycle.Retrying(replace(FAILURE, message=f"no {number}"), 1.0)
        settlement = settle(message, again, worker="w", now=NOW)
        assert isinstance(settlement, Reschedule)
        message = settlement.message
        assert [one.number for one in attempts(message, JobState.RETRYING)] == list(range(1, number + 1))
    settlement = settle(message, lifecycle.Raised(replace(FAILURE, message="no 4")), worker="w", now=NOW)
    assert isinstance(settlement, Fail)
    failed = settlement.message

    shown = [(one.number, one.message) for one in attempts(failed, JobState.FAILED)]
    assert shown == [(1, "no 1"), (2, "no 2"), (3, "no 3"), (4, "no 4")]
    assert (failed.retries, failed.run_at) == (3, None)
    requeued = requeue(failed)
    assert [one.number for one in attempts(requeued, JobState.PENDING)] == [1, 2, 3, 4]
    assert (requeued.attempt, requeued.policy_retries) == (5, 0)
