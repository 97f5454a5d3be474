"""The outbox of the Django project of the examples."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.errors import ArgumentsInvalid, BrokerUnavailable
from tests.contrib import django_site

ROOT = Path(__file__).parents[2]

Waiting = Callable[[], list[str]]
Away = Callable[[], AbstractContextManager[Client]]


@pytest.fixture(autouse=True)
def shop(_own_world: None) -> Any:
    return django_site.start()


def test_a_job_is_stored_with_the_data_and_enqueued_after_the_commit(shop: Any, waiting: Waiting) -> None:
    with suppress(LookupError), shop.transaction.atomic():
        for number in range(200):  # more than a commit moves: they must not hinder the next
            shop.outbox.enqueue(shop.ship, number)
        raise LookupError
    with shop.transaction.atomic():
        first = shop.outbox.enqueue(shop.ship, 1)
        with suppress(LookupError), shop.transaction.atomic():
            shop.outbox.enqueue(shop.ship, 3)
            raise LookupError
        shop.outbox.enqueue(shop.ship.options(queue="slow", id="mine"), order_id=2)
        assert (waiting(), shop.outbox.waiting()[0], first.status()) == ([], 2, "outbox")

    assert waiting() == ["ship(order_id=2)", "ship(1)"]
    assert [job.status() for job in (first, palermo.job_by_id("mine"))] == ["pending", "pending"]
    assert (shop.outbox.sweep(min_age=0), shop.outbox.waiting()) == (0, (0, 0.0))


def test_a_job_of_a_program_that_is_killed_after_the_commit_arrives_once(shop: Any, waiting: Waiting) -> None:
    program = (
        "import os, signal; from django.db import transaction; from orders.jobs import outbox, ship\n"
        "with transaction.atomic():\n"
        "    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "    outbox.enqueue(ship.options(id='order-1'), 1)\n"
    )
    killed = subprocess.run(
        [sys.executable, str(django_site.PROJECT / "manage.py"), "shell", "-c", program],
        env=os.environ | {"SHOP_DATA": str(shop.settings.DATA_DIR), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert (killed.returncode, waiting()) == (-signal.SIGKILL, []), killed.stdout + killed.stderr

    assert (shop.outbox.sweep(min_age=0), shop.outbox.sweep(min_age=0)) == (1, 0)

    assert waiting() == ["ship(1)"]
    assert palermo.job_by_id("order-1").status() == "pending"


def test_a_sweep_moves_each_row_once_and_passes_one_that_can_never_go(shop: Any, away: Away, waiting: Waiting) -> None:
    @palermo.job
    def pack(number: int) -> None:
        """A job for which the broker is away once, and one of which is never enqueued."""

    @pack.hook
    def before_enqueue(number: int) -> None:
        if number == 2 and not refused:
            refused.append(number)
            raise BrokerUnavailable("it is away")
        if number == 3:
            raise LookupError("no such order")

    refused: list[int] = [2]
    with away():
        first, *_ = [shop.outbox.enqueue(pack, number) for number in (1, 2, 3, 4)]
        with pytest.raises(BrokerUnavailable):
            shop.outbox.sweep(min_age=0)
    refused.clear()

    assert shop.async_to_sync(first.status_async)() == "outbox"
    assert shop.outbox.sweep() == 0  # rows as young as these are left to the program that stored them
    with pytest.raises(BrokerUnavailable):
        shop.outbox.sweep(min_age=0)
    assert (waiting(), shop.outbox.waiting()[0]) == (["pack(1)"], 3)
    assert shop.outbox.sweep(limit=1, min_age=0) == 2

    assert waiting() == ["pack(1)", "pack(2)", "pack(4)"]
    assert [entry.error for entry in shop.OutboxEntry.objects.all()] == ["LookupError: no such order"]


def test_wrong_arguments_and_a_missing_table_are_told_at_once(shop: Any, client: Client) -> None:
    # The migration makes the table that the model describes.
    shop.call_command("makemigrations", "palermo_outbox", check=True, dry_run=True, verbosity=0)
    stored = shop.Order.objects.create(email="a@example.com", total=30)

    with pytest.raises(ArgumentsInvalid, match="Pass its id"):
        shop.outbox.enqueue(shop.ship, stored)
    with pytest.raises(ArgumentsInvalid):
        shop.outbox.enqueue(shop.ship)
    with (
        shop.override_settings(INSTALLED_APPS=["palermo.contrib.django", "orders"]),
        pytest.raises(shop.ImproperlyConfigured, match=r"INSTALLED_APPS, then run `manage.py migrate`"),
    ):
        shop.outbox.enqueue(shop.ship, 1)
