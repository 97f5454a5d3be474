"""A duration is a number of seconds or a timedelta, wherever a program gives one."""

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

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {name: MINUTE}) for name in ("timeout", "lock_for", "expires", "delay", "unique", "dedupe")),
        *((name, {name: MINUTE}) for name in ("debounce", "throttle", "retry_for")),
        ("batch_wait", {"batch": 5, "batch_wait": MINUTE}),
    ],
)
def test_an_option_of_a_job_may_be_a_timedelta(name: str, options: dict[str, Any]) -> None:
    @palermo.job(**options)
    def work(item: int) -> None: ...

    assert getattr(work.definition, name) == 60.0


def test_a_subscription_and_a_recurring_job_take_timedeltas() -> None:
    @palermo.subscribe("order.*", group="mail", timeout=MINUTE, retry_for=2 * MINUTE)
    def confirm(order: dict[str, str]) -> None: ...

    @palermo.job(every=MINUTE)
    def sweep() -> None: ...

    assert (confirm.definition.timeout, confirm.definition.retry_for) == (60.0, 120.0)
    assert sweep.definition.recurring is not None
    assert sweep.definition.recurring.every == 60.0


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


def test_a_message_of_timedeltas_is_that_of_seconds(client: Client, waiting: Waiting) -> None:
    job = define(lambda number: None, name="x")
    client.enqueue(job, (1,), timeout=MINUTE, lock_for=2 * MINUTE, expires=3 * MINUTE)
    client.enqueue(job, (2,), timeout=60, lock_for=120, expires=180)

    first, second = waiting()

    assert (first.timeout, first.lock_for) == (second.timeout, second.lock_for) == (60.0, 120.0)
    assert (first.expires_at or 0.0) - (first.queued_at or 0.0) == pytest.approx(180.0, abs=1.0)


@pytest.mark.parametrize(
    ("value", "second"),
    [
        (MINUTE, 60.0),
        ([1, MINUTE], 60.0),
        (palermo.Fixed(delay=MINUTE), 60.0),
        (palermo.Linear(step=MINUTE), 120.0),
        (palermo.Linear(step=MINUTE, cap=timedelta(seconds=90)), 90.0),
        (palermo.Exponential(base=MINUTE, factor=3), 180.0),
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

    with pytest.raises(ResultTimeout, match=r"has not ended within 0.001 s"):
        job.result(timeout=timedelta(milliseconds=1))
    assert palermo.inspector().trim_failed(max_age=MINUTE) == 0
