"""The limits on how long a job may run and wait, as its enqueuing says them."""

import time

import pytest

import palermo
from palermo.client.client import Client
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

    after = time.time()

    messages = waiting()
    assert [message.timeout for message in messages] == [30.0, 0.5, 30.0, 7.0]
    for message, seconds in zip(messages, (600, 5, 600, 5), strict=True):
        # To the millisecond: how a header has it may round it.
        assert before - 0.001 <= (message.expires_at or 0) - seconds <= after + 0.001
    assert all(message.defect == "" for message in messages)


@pytest.mark.parametrize("wrong", [{"timeout": "5m"}, {"timeout": 0}, {"expires": True}, {"expires": 1e300}])
def test_a_limit_that_is_no_duration_is_refused_when_enqueuing(
    client: Client, waiting: Waiting, wrong: dict[str, float]
) -> None:
    with pytest.raises(OptionInvalid, match="is no duration"):
        client.enqueue("limited.plain", ["x"], **wrong)  # type: ignore[arg-type]


def test_an_error_in_a_limit_key_function_names_the_option(client: Client) -> None:
    @palermo.job(name="shop.charge.badly", limit=1, limit_key=lambda order: order["account"])
    def charge(order: dict[str, str]) -> None: ...

    with pytest.raises(
        OptionInvalid, match=r"given as limit_key of job 'shop.charge.badly' raised KeyError: 'account'"
    ):
        client.enqueue(charge.definition, [{}])
