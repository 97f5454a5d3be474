"""The outbox of the Django project of the examples."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.errors import ArgumentsInvalid, BrokerUnavailable
from tests.contrib import django_site

ROOT = Path(__file__).parents[2]

Waiting = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def shop(_own_world: None) -> Any:
    return django_site.start()


def test_a_job_is_stored_with_the_data_and_moved_by_the_sweep(shop: Any, waiting: Waiting) -> None:
    with shop.transaction.atomic():
        first = shop.outbox.enqueue(shop.ship, 1)
        shop.outbox.enqueue(shop.ship.options(queue="slow", id="mine"), order_id=2)
    assert (waiting(), shop.outbox.waiting()[0]) == ([], 2)

    assert shop.outbox.sweep() == 2

    assert waiting() == ["ship(order_id=2)", "ship(1)"]
    assert [str(palermo.job_by_id(id).status()) for id in (first, "mine")] == ["pending", "pending"]
    assert (shop.outbox.sweep(), shop.outbox.waiting()) == (0, (0, 0.0))


def test_a_transaction_that_is_rolled_back_leaves_no_job(shop: Any, waiting: Waiting) -> None:
    assert shop.Client().post("/orders/", {"email": "a@example.com", "total": 30, "card": "expired"}).status_code == 402

    assert (shop.outbox.waiting()[0], shop.outbox.sweep(), waiting()) == (0, 0, [])


def test_a_job_of_a_program_that_is_killed_after_the_commit_arrives_once(shop: Any, waiting: Waiting) -> None:
    program = (
        "import os, signal; from django.db import transaction; from orders.jobs import outbox, ship\n"
        "with transaction.atomic(): outbox.enqueue(ship.options(id='order-1'), 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, str(django_site.PROJECT / "manage.py"), "shell", "-c", program],
        env=os.environ | {"SHOP_DATA": str(shop.settings.DATA_DIR), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (killed.returncode, waiting()) == (-signal.SIGKILL, []), killed.stdout + killed.stderr

    assert (shop.outbox.sweep(), shop.outbox.sweep()) == (1, 0)

    assert waiting() == ["ship(1)"]
    assert palermo.job_by_id("order-1").status() == "pending"


def test_rows_wait_while_the_broker_is_away(shop: Any) -> None:
    with palermo.connect("amqp://127.0.0.1:1/", publish_timeout=0.2):
        shop.outbox.enqueue(shop.ship, 1)

        with pytest.raises(BrokerUnavailable):
            shop.outbox.sweep()

    assert shop.outbox.waiting()[0] == 1


def test_a_broker_that_goes_away_in_a_sweep_gets_no_job_twice(shop: Any, waiting: Waiting) -> None:
    @palermo.job
    def pack(number: int) -> None:
        """A job for which the broker is away once."""

    @pack.hook
    def before_enqueue(number: int) -> None:
        if number == 2 and not away:
            away.append(number)
            raise BrokerUnavailable("it is away")

    away: list[int] = []
    for number in (1, 2, 3):
        shop.outbox.enqueue(pack, number)

    with pytest.raises(BrokerUnavailable):
        shop.outbox.sweep()
    assert (waiting(), shop.outbox.waiting()[0]) == (["pack(1)"], 2)
    assert shop.outbox.sweep(limit=1) == 2

    assert waiting() == ["pack(1)", "pack(2)", "pack(3)"]


def test_a_row_that_can_never_be_enqueued_lets_the_others_pass(shop: Any, waiting: Waiting) -> None:
    @palermo.job
    def refused(number: int) -> None:
        """A job that is never enqueued."""

    @refused.hook
    def before_enqueue(number: int) -> None:
        raise LookupError("no such order")

    shop.outbox.enqueue(refused, 1)
    shop.outbox.enqueue(shop.ship, 2)

    assert shop.outbox.sweep() == 1

    assert (waiting(), shop.outbox.waiting()[0]) == (["ship(2)"], 0)
    assert [entry.error for entry in shop.OutboxEntry.objects.all()] == ["LookupError: no such order"]


def test_arguments_are_checked_when_they_are_stored(shop: Any, client: Client) -> None:
    stored = shop.Order.objects.create(email="a@example.com", total=30)

    with pytest.raises(ArgumentsInvalid, match="Pass its id"):
        shop.outbox.enqueue(shop.ship, stored)
    with pytest.raises(ArgumentsInvalid):
        shop.outbox.enqueue(shop.ship)


def test_a_project_without_the_table_is_told_what_to_do(shop: Any, client: Client) -> None:
    with (
        shop.override_settings(INSTALLED_APPS=["palermo.contrib.django", "orders"]),
        pytest.raises(shop.ImproperlyConfigured, match=r"INSTALLED_APPS, and run `manage.py migrate`"),
    ):
        shop.outbox.enqueue(shop.ship, 1)


def test_the_migration_makes_the_table_that_the_model_describes(shop: Any) -> None:
    shop.call_command("makemigrations", "palermo_outbox", check=True, dry_run=True, verbosity=0)
