"""What happens to a job next, as a table."""

from dataclasses import replace

import pytest

from palermo.core.failure import Failure
from palermo.core.lifecycle import (
    TRANSITIONS,
    Ack,
    Cancelled,
    Fail,
    Interrupted,
    JobState,
    Raised,
    Release,
    Result,
    Succeeded,
    requeue,
    settle,
)
from palermo.core.message import Message

FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="", failed_at=1_700)
MESSAGE = Message(id="7c9e", queue="mail", job="shop.send", body=b"[1]", extra={"x-mine": 1})


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (Succeeded(), Ack),
        (Succeeded(skipped=True), Ack),
        (Raised(FAILURE), Fail),
        (Interrupted(), Release),
        (Cancelled(), Ack),
    ],
)
def test_every_result_calls_for_one_settlement(result: Result, kind: type) -> None:
    assert isinstance(settle(MESSAGE, result, worker="w"), kind)


def test_a_failed_copy_keeps_id_body_and_headers_and_adds_the_error() -> None:
    settlement = settle(MESSAGE, Raised(FAILURE), worker="pid:1@h/worker-1")

    assert settlement == Fail(replace(MESSAGE, failure=FAILURE, worker="pid:1@h/worker-1", retries=0))


def test_failed_jobs_lie_in_one_queue_or_apart_for_every_queue() -> None:
    one = settle(MESSAGE, Raised(FAILURE), worker="w")
    apart = settle(MESSAGE, Raised(FAILURE), worker="w", failed_per_queue=True)

    assert isinstance(one, Fail)
    assert isinstance(apart, Fail)
    assert (one.queue, apart.queue) == ("failed", "failed:mail")
    assert one.message == apart.message


@pytest.mark.parametrize(("before", "failed", "requeued"), [(None, 0, 1), (0, 0, 1), (1, 1, 2), (7, 7, 8)])
def test_a_failed_job_keeps_its_retry_count_and_a_requeue_adds_one(
    before: int | None, failed: int, requeued: int
) -> None:
    settlement = settle(replace(MESSAGE, retries=before), Raised(FAILURE), worker="w")

    assert isinstance(settlement, Fail)
    assert settlement.message.retries == failed
    assert requeue(settlement.message).retries == requeued


def test_a_requeue_by_hand_forgets_when_the_job_would_have_expired_and_keeps_its_timeout() -> None:
    again = requeue(replace(MESSAGE, timeout=30.0, expires_at=1.0))

    assert (again.timeout, again.expires_at) == (30.0, None)


def test_a_requeue_takes_the_error_away_and_starts_the_policy_again() -> None:
    failed = replace(MESSAGE, failure=FAILURE, worker="w", retries=3, policy_retries=3)

    assert requeue(failed) == replace(MESSAGE, retries=4, policy_retries=0)
    assert requeue(failed, queue="slow").queue == "slow"


def test_every_state_can_be_reached_and_done_and_discarded_are_the_ends() -> None:
    reached = {to for _, _, to in TRANSITIONS}
    left = {origin for _, origin, _ in TRANSITIONS if origin is not None}

    assert reached == set(JobState)
    assert set(JobState) - left == {JobState.DONE, JobState.DISCARDED}
