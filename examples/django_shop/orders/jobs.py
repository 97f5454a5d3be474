"""The jobs of the shop. Django finds this module by its name."""

from django.core.mail import send_mail

import palermo
from orders.models import Order
from palermo.contrib.django.outbox import Outbox

outbox = Outbox()


@palermo.job(queue="mail", retries=5)
def send_receipt(order_id: int) -> None:
    """Send the receipt of an order. A job may run twice: an order whose receipt was sent is left alone."""
    order = Order.objects.get(pk=order_id)
    if order.receipt_sent:
        return
    send_mail("Your receipt", f"You paid {order.total}.", None, [order.email])
    order.receipt_sent = True
    order.save(update_fields=["receipt_sent"])


@palermo.job(queue="warehouse", retries=5)
def ship(order_id: int) -> None:
    """Tell the warehouse. This must not be missing for an order that is paid, so the job goes through the outbox."""
    send_mail("Ship an order", f"Order {order_id} is paid.", None, ["warehouse@example.com"])


@palermo.job(every=5, unique="until_done")
def sweep_outbox() -> None:
    """Enqueue the jobs that a commit left in the outbox."""
    outbox.sweep()
