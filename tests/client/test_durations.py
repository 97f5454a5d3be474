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


def test_a_message_of_timedeltas_is_one_of_seconds(client: Client, waiting: Waiting) -> None:
    client.enqueue(define(lambda: None, name="x"), timeout=MINUTE, rerun_after=2 * MINUTE, expires=3 * MINUTE)

    (message,) = waiting()

    assert (message.timeout, message.rerun_after) == (60.0, 120.0)
    assert (message.expires_at or 0.0) - (message.queued_at or 0.0) == pytest.approx(180.0, abs=1.0)


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

    with pytest.raises(ResultTimeout, match=r"did not end within 0.001 s"):
        job.result(timeout=timedelta(milliseconds=1))
    assert palermo.inspector().failed.trim(max_age=MINUTE) == 0
