"""What an answer about a key means for a delivery, and a settlement for the key: the same for all brokers."""

from dataclasses import replace

from palermo.broker import Delivery
from palermo.core.keys import lock_of
from palermo.core.lifecycle import Ack, Fail, Settlement
from palermo.core.unique import End, Start, Why, with_content


def must_ask(delivery: Delivery) -> bool:
    """Whether the job may run only if it has its key."""
    lock = lock_of(delivery.message)
    return lock is not None and lock.asks and not delivery.cancelled


def admitted(delivery: Delivery, grant: Start) -> Delivery | None:
    """The delivery after the answer; None for one to be dropped."""
    match grant.why:
        case Why.RUN:
            message = delivery.message
            content = message if grant.content is None else with_content(message, grant.content)
            return replace(delivery, message=content, grant=grant)
        case Why.DUPLICATE:
            return replace(delivery, duplicate_of=grant.holder, grant=grant)
    return None


def how_ended(delivery: Delivery, settlement: Settlement) -> tuple[End, int | None] | None:
    """What to tell of the job's key before the delivery is gone, and of which start; None for nothing."""
    grant, lock = delivery.grant, lock_of(delivery.message)
    started = isinstance(grant, Start) and grant.tell
    if lock is None or delivery.duplicate_of or not (started or delivery.cancelled or not lock.asks):
        return None
    match settlement:
        case Ack(done):
            how = End.DONE if done else End.OVER
        case Fail():
            how = End.OVER
        case _:
            how = End.AGAIN
    if not lock.asks and how is not End.OVER:
        return None  # its seconds pass by themselves
    return how, (grant.serial or None if isinstance(grant, Start) else None)
