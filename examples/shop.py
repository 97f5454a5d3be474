"""The jobs of a small shop.

palermo worker shop         in this folder, in one terminal: runs them
python shop.py              in another: enqueues some
"""

import time

import palermo


class CardExpired(Exception):
    """The bank says no."""


@palermo.job(queue="mail")
class SendMail:
    """A job that is a class: it has `process`, and may have a queue of its own."""

    def process(self, to: str, *, subject: str = "hi") -> None:
        print(f"mail to {to}: {subject}")


@palermo.job
def resize(path: str, width: int = 640) -> None:
    """A job that is a function; this one takes its time."""
    time.sleep(0.2)
    print(f"{path} is {width} pixels wide now")


@palermo.job
def charge(order: str, *, card: str = "expired") -> None:
    """Fails until it is requeued with another card.

    palermo failed requeue ID --kwargs '{"card": "new"}'
    """
    if card == "expired":
        raise CardExpired(f"order {order} cannot be charged: the card has expired")
    print(f"order {order} is paid")


if __name__ == "__main__":
    SendMail.enqueue("ann@example.com", subject="your order")
    resize.enqueue_many([("ann.png",), ("bob.png",), {"path": "cat.png", "width": 1280}])
    job = charge.enqueue("A-17")
    print(f"enqueued; {job.id} will fail: palermo failed show {job.id}")
