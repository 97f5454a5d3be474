"""The tests of the example: `python manage.py test`."""

from django.contrib.auth.models import User
from django.core import mail
from django.test import TestCase

from orders.jobs import outbox, send_receipt, ship, sweep_outbox
from orders.models import Order
from palermo.testing import Palermo


class ShopTest(TestCase):
    """Each test has a broker of its own, and runs its jobs itself."""

    def setUp(self) -> None:
        self.palermo = self.enterContext(Palermo())

    def order(self, card: str = "good") -> int:
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post("/orders/", {"email": "a@example.com", "total": "30", "card": card}).status_code

    def test_an_order_has_its_receipt_sent_and_is_shipped(self) -> None:
        assert self.order() == 201

        assert self.palermo.work() == 2
        assert [each.to for each in mail.outbox] == [["a@example.com"], ["warehouse@example.com"]]

    def test_a_job_that_a_commit_left_in_the_outbox_is_swept(self) -> None:
        self.client.post("/orders/", {"email": "a@example.com", "total": "30", "card": "good"})
        self.palermo.refute_enqueued(ship)

        self.palermo.clock.advance(60)
        sweep_outbox()

        self.palermo.assert_enqueued(ship, Order.objects.get().pk)
        assert outbox.waiting()[0] == 0

    def test_a_refused_card_leaves_no_order_and_no_job(self) -> None:
        assert self.order(card="expired") == 402

        assert (Order.objects.count(), outbox.waiting()[0]) == (0, 0)
        self.palermo.refute_enqueued()

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
