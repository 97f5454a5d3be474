"""Whether a job that did not end well runs again, as a table."""

from typing import Any

import pytest

from palermo.core.backoff import Fixed
from palermo.core.message import Message
from palermo.core.retry_policy import Discard, Drop, GiveUp, Retry, RunAgain, Snooze, decide, is_failure, make_policy
from palermo.errors import JobCrashed, JobTimeout, LockExpired, OptionInvalid

NOW = 1_000_000.0
TEN = Fixed(delay=10)


def decided(options: dict[str, Any], error: BaseException | None = None, **message: Any) -> Any:
    made = Message(id="1", queue="q", job="j", **message)
    return decide(make_policy(**options), error or ValueError("no"), made, now=NOW, chance=0.5)


EXHAUSTED = GiveUp(exhausted=True)


@pytest.mark.parametrize(
    ("options", "done", "decision"),
    [
        ({}, None, GiveUp()),  # the default of the original and of Resque: straight to failed
        ({"retries": 0}, None, GiveUp()),
        ({"retries": 3, "backoff": 10}, None, RunAgain(10)),
        ({"retries": 3, "backoff": 10}, 2, RunAgain(10)),
        ({"retries": 3, "backoff": 10}, 3, EXHAUSTED),
        ({"retries": 3, "backoff": [1, 5]}, 1, RunAgain(5)),
        ({"retries": 3}, None, RunAgain(20)),  # Sidekiq's: 0⁴ + 15 + 0.5 * 10
        ({"backoff": 10}, 24, RunAgain(10)),  # how, and not how often: 25
        ({"backoff": 10}, 25, EXHAUSTED),
        ({"retry_on": ValueError}, 25, EXHAUSTED),
        ({"retry_for": 60, "backoff": 10}, 5_000, RunAgain(10)),  # as often as its time allows
        ({"discard_on": KeyError}, None, GiveUp()),
    ],
)
def test_how_often(options: dict[str, Any], done: int | None, decision: object) -> None:
    assert decided(options, policy_retries=done) == decision


@pytest.mark.parametrize(
    ("options", "done", "decision"),
    [
        ({}, None, RunAgain(0)),  # as if its worker had died: twice more, though it declares no retries
        ({}, 1, RunAgain(0)),
        ({}, 2, EXHAUSTED),
        ({"retries": 0}, None, GiveUp()),
        ({"retries": 1}, None, RunAgain(0)),
        ({"retries": 1}, 1, EXHAUSTED),
        ({"retries": 5, "backoff": 10}, 4, RunAgain(0)),
        ({"retries": 5, "backoff": 10}, 5, EXHAUSTED),
        ({"retry_for": 60}, 5_000, RunAgain(0)),
        ({"retry_on": KeyError}, 1, RunAgain(0)),
    ],
)
def test_a_job_whose_lock_for_has_passed_runs_again_immediately(
    options: dict[str, Any], done: int | None, decision: object
) -> None:
    assert decided(options, LockExpired("hung"), policy_retries=done) == decision


@pytest.mark.parametrize(("retries", "decision"), [(0, GiveUp()), (1, RunAgain(0))])
def test_retries_of_an_enqueue_bound_the_runs_after_lock_for(retries: int, decision: object) -> None:
    assert decided({"retries": 5}, LockExpired("hung"), max_retries=retries) == decision
    assert decided({}, LockExpired("hung"), max_retries=retries) == decision


@pytest.mark.parametrize(
    ("since", "decision"),
    [
        (None, RunAgain(10)),  # its first failure is this one
        (NOW - 49, RunAgain(10)),
        (NOW - 55, RunAgain(5)),  # the last try comes when the time is up
        (NOW - 60, EXHAUSTED),
    ],
)
def test_for_how_long(since: float | None, decision: object) -> None:
    assert decided({"retry_for": 60, "backoff": 10}, retrying_since=since) == decision


def test_whichever_of_count_and_time_ends_first() -> None:
    both = {"retries": 2, "retry_for": 60, "backoff": 10}

    assert decided(both, policy_retries=2, retrying_since=NOW - 1) == EXHAUSTED
    assert decided(both, policy_retries=1, retrying_since=NOW - 60) == EXHAUSTED


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (ConnectionResetError("x"), RunAgain(10)),  # a subclass
        (OSError("x"), RunAgain(10)),
        (ValueError("x"), GiveUp()),
        (FileNotFoundError("x"), Drop()),  # to throw away wins
        (KeyError("x"), Drop()),
        (JobTimeout("x"), RunAgain(10)),
        (JobCrashed("x"), GiveUp()),
    ],
)
def test_after_which_errors(error: BaseException, decision: object) -> None:
    options = {
        "retries": 3,
        "backoff": TEN,
        "retry_on": (OSError, JobTimeout),
        "discard_on": [KeyError, FileNotFoundError],
    }
    assert decided(options, error) == decision


def test_all_errors_are_tried_again_where_none_are_named() -> None:
    for error in (ValueError(), SystemExit(), KeyboardInterrupt(), JobCrashed(), JobTimeout()):
        assert decided({"retries": 1, "backoff": TEN}, error) == RunAgain(10)


@pytest.mark.parametrize(
    ("options", "done", "decision"),
    [
        ({}, None, RunAgain(7)),
        ({}, 24, RunAgain(7)),  # 25 where the job says nothing
        ({}, 25, EXHAUSTED),
        ({"retries": 3}, 2, RunAgain(7)),
        ({"retries": 3}, 3, EXHAUSTED),
        ({"retries": 0}, None, GiveUp()),
        ({"retries": 3, "retry_on": KeyError, "discard_on": Exception}, None, RunAgain(7)),  # it was asked for
    ],
)
def test_a_job_may_ask_for_a_retry(options: dict[str, Any], done: int | None, decision: object) -> None:
    assert decided(options, Retry("later", delay=7), policy_retries=done) == decision


def test_a_retry_without_a_delay_waits_as_the_backoff_says() -> None:
    assert decided({"backoff": [3, 4]}, Retry(), policy_retries=1) == RunAgain(4)
    assert decided({}, Retry()) == RunAgain(20)


def test_a_job_may_snooze_or_discard_itself_whatever_its_policy() -> None:
    for options in ({}, {"retries": 3, "retry_on": KeyError}, {"discard_on": Exception}):
        assert decided(options, Snooze(60), policy_retries=99) == RunAgain(60, counted=False)
        assert decided(options, Discard("gone"), policy_retries=99) == Drop("gone")


@pytest.mark.parametrize(("limit", "decision"), [(5, RunAgain(10)), (2, EXHAUSTED), (0, GiveUp())])
def test_one_enqueue_may_say_another_number(limit: int, decision: object) -> None:
    assert decided({"retries": 3, "backoff": 10}, max_retries=limit, policy_retries=2) == decision


def test_one_enqueue_may_ask_for_retries_of_a_job_that_has_none() -> None:
    assert decided({}, max_retries=1) == RunAgain(20)
    assert decided({}, Retry(delay=1), max_retries=1, policy_retries=1) == EXHAUSTED


def test_a_function_decides_by_attempt_and_error() -> None:
    def waits(attempt: int, error: BaseException) -> object:
        return {1: 33, 2: None, 3: "discard", 4: "fail"}[attempt] if isinstance(error, ValueError) else 1

    found = [decided({"backoff": waits}, policy_retries=done) for done in range(4)]

    assert found == [RunAgain(33), RunAgain(26), Drop(), EXHAUSTED]
    assert decided({"backoff": waits}, KeyError()) == RunAgain(1)


def test_nobody_waits_for_a_try_that_would_be_too_late() -> None:
    assert decided({"retries": 3, "backoff": 10}, expires_at=NOW + 10.5) == RunAgain(10)
    assert decided({"retries": 3, "backoff": 10}, expires_at=NOW + 10) == EXHAUSTED


@pytest.mark.parametrize("delay", [-1, "soon", True, float("nan"), 1e12])
def test_a_delay_that_means_nothing_is_refused_where_it_is_raised(delay: Any) -> None:
    with pytest.raises(OptionInvalid, match="delay="):
        Snooze(delay)
    with pytest.raises(OptionInvalid, match="delay="):
        Retry(delay=delay)


def test_only_an_error_is_a_failure() -> None:
    assert [is_failure(error) for error in (ValueError(), Retry(), Snooze(1), Discard())] == [True, True, False, False]
