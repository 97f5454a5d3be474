"""The options that an enqueue takes and refuses: limits of time, what does not go with batches, and timedeltas."""

import time
from datetime import timedelta
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.core.backoff import backoff, seconds
from palermo.errors import OptionInvalid, ResultTimeout
from palermo.jobs.definition import define
from palermo.jobs.options import EnqueueOptions
from palermo.settings.settings import Settings
from tests.client.conftest import Waiting


@palermo.job(name="limited.resize", timeout=30, expires=600)
def resize(path: str) -> None: ...


def test_declared_limits_travel_with_every_job_and_options_override_them(client: Client, waiting: Waiting) -> None:
    before = time.time()

    resize.enqueue("x")
    resize.options(timeout=0.5, expires=5).enqueue("x")
    resize.enqueue_many([("x",)])
    palermo.enqueue("limited.plain", ["x"], timeout=7, expires=5)
    palermo.enqueue("limited.plain", ["x"])

    after = time.time()

    *messages, plain = waiting()
    assert (plain.timeout, plain.expires_at) == (None, None)
    assert [message.timeout for message in messages] == [30.0, 0.5, 30.0, 7.0]
    for message, lasts in zip(messages, (600, 5, 600, 5), strict=True):
        # To the millisecond: how a header has it may round it.
        assert before - 0.001 <= (message.expires_at or 0) - lasts <= after + 0.001
    assert all(message.defect == "" for message in messages)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *((one, "is not a duration") for one in ({"timeout": "5m"}, {"timeout": 0}, {"expires": True})),
        ({"expires": 1e300}, "is not a duration"),
        ({"limit": 0}, "limit=0"),
        ({"limit": True}, "limit=True"),
        ({"rate": "often"}, "rate='often'"),
        ({"limit": 1, "limit_key": ""}, "limit_key=''"),
        ({"limit": 1, "limit_key": "k\ud800"}, "UTF-8"),
        ({"unique": 5, "unique_key": "k\ud800"}, "UTF-8"),
        ({"priority": 10}, "priority=10"),
        ({"rerun_after": 0}, "rerun_after=0"),
    ],
)
def test_an_option_that_means_nothing_is_refused(wrong: dict[str, Any], named: str, client: Client) -> None:
    with pytest.raises(OptionInvalid, match=named):
        client.enqueue("limited.plain", ["x"], **wrong)


def test_an_error_in_a_limit_key_function_names_the_option(client: Client) -> None:
    charge = define(lambda order: None, name="shop.charge", limit=1, limit_key=lambda order: order["account"])

    with pytest.raises(OptionInvalid, match=r"given as limit_key of job 'shop.charge' raised KeyError: 'account'"):
        client.enqueue(charge, [{}])


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "until_done"},
        {"unique": 5.0},
        {"dedupe": 5.0},
        {"limit": 3},
        {"rate": "5/s"},
        {"rerun_after": 5.0},
        {"keep_result": True},
    ],
)
def test_options_that_do_not_go_with_batch_are_refused(options: dict[str, Any], client: Client) -> None:
    with pytest.raises(OptionInvalid, match="batches"):
        define(lambda items: None, name="x", batch=5, **options)
    job = define(lambda items: None, name="x", batch=5)
    with pytest.raises(OptionInvalid, match="batches"):
        client.enqueue(job, (1,), {}, **options)


def test_what_a_batch_goes_with_is_taken(client: Client) -> None:
    job = define(lambda items: None, name="x", batch=5, priority=3, tenant="a", timeout=5.0, retries=2)

    assert client.enqueue(job, (1,), {}, debounce=1.0).enqueued
    assert client.enqueue(job, (2,), {}, unique_key="k", throttle=1.0).enqueued


# -- a duration is a number of seconds or a timedelta, wherever a program gives one


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("name", ["timeout", "expires", "delay", "unique", "throttle", "retry_for"])
def test_an_option_of_a_job_may_be_a_timedelta(name: str) -> None:
    options: Any = {name: MINUTE}

    assert getattr(palermo.job(name="x", **options)(lambda: None).definition, name) == 60.0
    assert palermo.job(name="y", batch=5, batch_wait=MINUTE)(lambda items: None).definition.batch_wait == 60.0


def test_durations_of_an_enqueue_may_be_timedeltas(client: Client) -> None:
    durations = [name for name, hint in EnqueueOptions.__annotations__.items() if "timedelta" in str(hint)]
    for name in durations:
        job = define(lambda: None, name=name)
        given: Any = {name: MINUTE}
        negative: Any = {name: -MINUTE}
        assert client.enqueue(job, **given).enqueued, name
        with pytest.raises(OptionInvalid, match=f"{name}=datetime.timedelta"):
            client.enqueue(job, **negative)

    assert len(durations) == 8


@pytest.mark.parametrize(
    ("value", "second"),
    [
        (MINUTE, 60.0),
        (palermo.Fixed(delay=MINUTE), 60.0),
        (palermo.Linear(step=MINUTE, cap=timedelta(seconds=90)), 90.0),
        (palermo.Exponential(base=MINUTE, factor=3, cap=2 * MINUTE), 120.0),
        (lambda attempt, error: attempt * MINUTE, 120.0),
    ],
)
def test_a_backoff_may_be_made_of_timedeltas(value: object, second: float) -> None:
    assert seconds(backoff(value), 2, 0.5) == second


def test_a_job_may_say_by_a_timedelta_when_it_runs_again() -> None:
    assert palermo.Retry(delay=MINUTE).delay == 60.0
    assert palermo.Snooze(MINUTE).delay == 60.0
    with pytest.raises(OptionInvalid, match=r"Snooze got delay=datetime.timedelta\(days=-1\); give seconds"):
        palermo.Snooze(timedelta(days=-1))


def test_a_setting_may_be_a_timedelta() -> None:
    settings = Settings.load(publish_timeout=MINUTE, schedule={"sweep": {"job": "shop.sweep", "every": MINUTE}})

    assert settings.publish_timeout == 60.0
    assert settings.schedule["sweep"]["every"] == 60.0


def test_a_wait_may_be_a_timedelta(client: Client) -> None:
    job = client.enqueue(define(lambda: None, name="x"), keep_result=True)

    with pytest.raises(ResultTimeout, match=r"was seen within 0.001 s"):
        job.result(timeout=timedelta(milliseconds=1))
    assert palermo.inspector().failed.trim(max_age=MINUTE) == 0
