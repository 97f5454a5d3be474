"""Priorities and limits on the command line."""

import json

import pytest

from palermo.client.client import Client
from tests.cli.conftest import Palermo


def test_a_priority_is_given_when_enqueuing_and_shown_with_the_job(palermo: Palermo, client: Client) -> None:
    for priority in ("0", "9"):
        palermo("enqueue", "shop.send", "-q", "mail", "--priority", priority)
    palermo("enqueue", "shop.send", "-q", "mail", "--priority", "10", code=2)

    rows = json.loads(palermo("jobs", "mail", "--json").stdout)

    assert [row["priority"] for row in rows] == [9, 0]


@pytest.mark.parametrize("queues", ["high:0", "high:1001,low", "!low:2"])
def test_a_weight_that_makes_no_sense_is_one_line(palermo: Palermo, queues: str) -> None:
    result = palermo("worker", "shop", "-q", queues, code=2)

    assert result.stderr.count("\n") == 1
