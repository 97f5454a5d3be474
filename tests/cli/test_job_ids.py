"""The beginning of an id, as pages and listings show it, instead of the whole id."""

import pytest

from palermo.cli.job_ids import chosen_id
from palermo.client.client import Client
from palermo.errors import IdInvalid
from tests.cli.conftest import Palermo
from tests.inspector.jobs import failure, message, publish_failed

#: Two ids that begin alike, and one of the user's own that is the beginning of another.
FIRST, SECOND = "7c9e12ab-1111-4111-8111-111111111111", "7c9e12ab-2222-4222-8222-222222222222"
OWN, LONGER = "order-17-paid", "order-17-paid-again"


def test_failed_jobs_are_found_by_the_beginnings_of_their_ids(palermo: Palermo, client: Client) -> None:
    publish_failed(client, *((message(id), failure()) for id in (FIRST, SECOND, OWN, LONGER)))

    assert palermo.rows("failed", "show", FIRST[:10])["id"] == FIRST
    assert f"of 2 ids: {FIRST}, {SECOND}" in palermo("failed", "requeue", FIRST[:8], code=2).stderr
    assert palermo.ids("failed", "list") == [FIRST, SECOND, OWN, LONGER]
    assert palermo("failed", "requeue", SECOND[:10]).stdout == "requeued 1 job.\n"
    assert palermo("failed", "discard", "--yes", FIRST[:8], OWN).stdout == "discarded 2 jobs.\n"
    assert palermo.ids("failed", "list") == [LONGER]


def test_many_ids_that_begin_alike_are_counted() -> None:
    with pytest.raises(IdInvalid, match=r"of 7 ids: order-170, .*, order-174 and 2 more\."):
        chosen_id("order-17", [f"order-17{number}" for number in range(7)])
