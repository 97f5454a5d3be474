"""The rules for jobs with a unique key: applying the answer about the key to a delivery, and a settlement to the key.

All brokers use them.
"""

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.broker import Delivery
from palermo.contract.clock import wall_clock
from palermo.core.due_times import is_early
from palermo.core.lifecycle import Ack, Fail, Reschedule, Settlement
from palermo.core.limits import demand_of
from palermo.core.message import Message
from palermo.core.unique_keys import lock_of
from palermo.core.unique_rules import RunOutcome, StartAnswer, StartReason, with_arguments_of
from palermo.core.workflow import WORKFLOW


def needs_key(delivery: Delivery) -> bool:
    """Whether the job must be granted its key before it runs."""
    lock = lock_of(delivery.message)
    return lock is not None and lock.asks and not delivery.cancelled


def is_plain(message: Message) -> bool:
    """Whether the job can start without asking the broker: it is due, and has no key, limit or rate."""
    if message.extra and (lock_of(message) is not None or demand_of(message) is not None):
        return False
    return message.run_at is None or not is_early(message, wall_clock())


def runs_alone(message: Message) -> bool:
    """Whether the job must run in its own call.

    Otherwise the other jobs of its batch would have to wait for it, or would end when it ends.
    """
    lock = lock_of(message)
    alone = (lock is not None and lock.asks) or demand_of(message) is not None or message.rerun_after is not None
    return alone or WORKFLOW in message.extra


def admitted(delivery: Delivery, grant: StartAnswer) -> Delivery | None:
    """The delivery with the answer about its key; None if it must be dropped."""
    match grant.why:
        case StartReason.RUN:
            message = delivery.message
            content = message if grant.content is None else with_arguments_of(message, grant.content)
            return replace(delivery, message=content, grant=grant)
        case StartReason.DUPLICATE:
            return replace(delivery, duplicate_of=grant.holder, grant=grant)
    return None


class KeyReport(Struct, frozen=True):
    """A worker's report about a job's key, before the delivery is settled."""

    how: RunOutcome
    #: Identify the holder and its start; None if the worker did not need to ask.
    serial: int | None
    starts: int | None
    #: When it runs again, in Unix seconds.
    run_at: float | None


def key_report(delivery: Delivery, settlement: Settlement, *, adopted: bool = False) -> KeyReport | None:
    """The report about the job's key to send before this settlement, if any.

    An `adopted` job was started by another worker.
    """
    grant, lock = delivery.grant, lock_of(delivery.message)
    started = isinstance(grant, StartAnswer) and grant.report_end
    if lock is None or delivery.duplicate_of or not (started or adopted or delivery.cancelled or not lock.asks):
        return None
    how, run_at = RunOutcome.AGAIN, None
    match settlement:
        case Ack(done):
            how = RunOutcome.DONE if done else RunOutcome.OVER
        case Fail():
            how = RunOutcome.OVER
        case Reschedule(message):
            run_at = message.run_at
    if not lock.asks and how is not RunOutcome.OVER:
        return None  # the key is freed by time
    if not isinstance(grant, StartAnswer):
        return KeyReport(how, None, None, run_at)
    return KeyReport(how, grant.serial or None, grant.starts or None, run_at)
