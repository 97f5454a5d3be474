"""The options that a job with batches may have."""

from typing import Any

import pytest

from palermo.client.client import Client
from palermo.errors import OptionInvalid
from palermo.jobs.definition import define


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "until_done"},
        {"unique": 5.0},
        {"dedupe": 5.0},
        {"limit": 3},
        {"rate": "5/s"},
        {"lock_for": 5.0},
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
