"""What an answer about a key means for a delivery, and a settlement for the key: the same for all brokers."""

import time
from dataclasses import replace

from palermo.broker import Delivery
from palermo.core.delay import is_early
from palermo.core.keys import lock_of
from palermo.core.lifecycle import Ack, Fail, Retry, Settlement
from palermo.core.message import Message
from palermo.core.permits import demand_of
from palermo.core.unique import End, Start, Why, with_content
from palermo.core.values import dataclass


def must_ask(delivery: Delivery) -> bool:
    """Whether the job may run only if it has its key."""
    lock = lock_of(delivery.message)
    return lock is not None and lock.asks and not delivery.cancelled


def is_plain(message: Message) -> bool:
    """Whether the job may be run now without asking anybody: it needs neither key nor permit, and is due."""
    if message.extra and (lock_of(message) is not None or demand_of(message) is not None):
        return False
    return message.run_at is None or not is_early(message, time.time())


def runs_alone(message: Message) -> bool:
    """Whether it runs in a call of its own, even where its job takes batches: no other is to wait, or end, with it."""
    lock = lock_of(message)
    return (lock is not None and lock.asks) or demand_of(message) is not None or message.lock_for is not None


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


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of a job's key before its delivery is gone."""

    how: End
    #: Of which start; None where nobody had to ask.
    serial: int | None
    starts: int | None
    #: When it runs again, in Unix seconds.
    run_at: float | None


def how_ended(delivery: Delivery, settlement: Settlement, *, parked: bool = False) -> Told | None:
    """What to tell of the job's key; None for nothing. A `parked` job was started by another worker."""
    grant, lock = delivery.grant, lock_of(delivery.message)
    started = isinstance(grant, Start) and grant.tell
    if lock is None or delivery.duplicate_of or not (started or parked or delivery.cancelled or not lock.asks):
        return None
    how, run_at = End.AGAIN, None
    match settlement:
        case Ack(done):
            how = End.DONE if done else End.OVER
        case Fail():
            how = End.OVER
        case Retry(message):
            run_at = message.run_at
    if not lock.asks and how is not End.OVER:
        return None  # its seconds pass by themselves
    if not isinstance(grant, Start):
        return Told(how, None, None, run_at)
    return Told(how, grant.serial or None, grant.starts or None, run_at)
