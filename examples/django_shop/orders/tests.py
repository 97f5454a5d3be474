"""The tests of the example: `python manage.py test`."""

import tempfile
from pathlib import Path

from django.contrib.auth.models import User
from django.core import mail
from django.test import TestCase

import palermo
from orders.jobs import outbox, send_receipt, sweep_outbox
from orders.models import Order


class ShopTest(TestCase):
    """Each test has a broker of its own: a file."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.broker = palermo.connect(f"sqlite:///{Path(folder.name)}/jobs.db")
        self.addCleanup(self.broker.close)

    def order(self, card: str = "good") -> int:
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post("/orders/", {"email": "a@example.com", "total": "30", "card": card}).status_code

    def waiting(self) -> dict[str, int]:
        return {row["name"]: row["pending"] for row in palermo.inspector().queues() if row["pending"]}

    def test_an_order_has_its_receipt_sent(self) -> None:
        assert self.order() == 201

        assert self.waiting() == {"mail": 1}

    def test_an_order_is_shipped_after_the_next_sweep(self) -> None:
        self.order()
        assert outbox.waiting()[0] == 1

        sweep_outbox()

        assert (self.waiting(), outbox.waiting()[0]) == ({"mail": 1, "warehouse": 1}, 0)

    def test_a_refused_card_leaves_no_order_and_no_job(self) -> None:
        assert self.order(card="expired") == 402

        assert (Order.objects.count(), outbox.waiting()[0], self.waiting()) == (0, 0, {})

    def test_a_receipt_is_sent_once_even_if_the_job_runs_twice(self) -> None:
        order = Order.objects.create(email="a@example.com", total=30)

        send_receipt(order.pk)
        send_receipt(order.pk)

        assert [each.to for each in mail.outbox] == [["a@example.com"]]

    def test_the_pages_of_jobs_are_for_staff(self) -> None:
        assert self.client.get("/ops/jobs/queues").url == "/admin/login/?next=/ops/jobs/queues"
        self.client.force_login(User.objects.create_user("bob"))
        assert self.client.get("/ops/jobs/queues").status_code == 403

        self.client.force_login(User.objects.create_user("ann", is_staff=True))

        assert b"Palermo" in self.client.get("/ops/jobs/queues").content
