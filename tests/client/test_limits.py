"""How long a job may run and wait, as its enqueuing says it."""

import time

import pytest

import palermo
from palermo.client import Client
from palermo.errors import OptionInvalid
from tests.client.conftest import Waiting


@palermo.job(name="limited.resize", timeout=30, expires=600)
def resize(path: str) -> None: ...


@palermo.job(name="limited.plain")
def plain(path: str) -> None: ...


def test_a_job_without_limits_says_nothing_of_them(client: Client, waiting: Waiting) -> None:
    plain.enqueue("x")

    (message,) = waiting()
    assert (message.timeout, message.expires_at) == (None, None)


def test_declared_limits_travel_with_every_job_and_options_override_them(client: Client, waiting: Waiting) -> None:
    before = time.time()

    resize.enqueue("x")
    resize.options(timeout=0.5, expires=5).enqueue("x")
    resize.enqueue_many([("x",)])
    palermo.enqueue("limited.plain", ["x"], timeout=7, expires=5)

    messages = waiting()
    assert [message.timeout for message in messages] == [30.0, 0.5, 30.0, 7.0]
    seconds = [(message.expires_at or 0) - before for message in messages]
    assert seconds == [pytest.approx(each, abs=5) for each in (600, 5, 600, 5)]
    assert all(message.defect == "" for message in messages)


@pytest.mark.parametrize("wrong", [{"timeout": "5m"}, {"timeout": 0}, {"expires": True}, {"expires": 1e300}])
def test_a_limit_that_is_no_duration_is_refused_when_enqueuing(
    client: Client, waiting: Waiting, wrong: dict[str, float]
) -> None:
    with pytest.raises(OptionInvalid, match="is no duration"):
        client.enqueue("limited.plain", ["x"], **wrong)  # type: ignore[arg-type]
