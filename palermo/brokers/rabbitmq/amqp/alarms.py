"""Alarms, limits and missing permissions that keep RabbitMQ from storing, creating queues, or passing on commands.

During an alarm RabbitMQ stops reading from any connection that has ever published, including its acks and requests. So
a session has one connection for reading and another for writing.
"""

import asyncio
import logging

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.amqp.replies import ACCESS_REFUSED
from palermo.brokers.rabbitmq.seconds import ANSWERED_WITHIN
from palermo.contract.trouble import Trouble
from palermo.errors import BrokerRefused, BrokerUnavailable

log = logging.getLogger("palermo.rabbitmq")

#: RabbitMQ's name of each alarm, and ours.
_ALARMS = {"memory": "memory alarm", "disk": "disk alarm"}

_ADVICE = (
    "Workers finish the jobs that they hold, but no job, result or answer is stored. Run `rabbitmq-diagnostics"
    " alarms`, then free {what} or let workers empty the queues."
)

_LIMIT_ADVICE = (
    "Each worker needs its own queue before it takes jobs. Check `rabbitmqctl list_vhost_limits`, then raise the"
    " limit or delete unused queues."
)

_ASKING_ADVICE = (
    "Only the last reports of workers are shown, or only their number. To see their current state, use another user,"
    " or give this one write permission on {exchange}, which also allows it to stop workers: see"
    " docs/guides/rabbitmq.md."
)

#: A message for no queue, which RabbitMQ drops.
_NOTHING = Properties(delivery_mode=1, expiration="0")


def trouble_of(connection: Connection) -> Trouble | None:
    """The problem that RabbitMQ has reported on this connection."""
    reason = connection.blocked
    if not reason:
        return None
    alarms = [kind for kind in _ALARMS if kind in reason]
    named = " and ".join(_ALARMS[kind] for kind in alarms) or reason
    what = " and ".join("memory" if kind == "memory" else "disk space" for kind in alarms) or "its resources"
    cause = f"RabbitMQ at {connection.where} blocks publishers: {named}"
    return Trouble(cause, _ADVICE.format(what=what), waits=True)


def unconfirmed(connection: Connection, what: str, timeout: float) -> BrokerUnavailable:
    """The error for a message that RabbitMQ hasn't confirmed in time; `what` describes the message."""
    trouble = trouble_of(connection)
    why = "it is overloaded or unreachable." if trouble is None else trouble.text
    return BrokerUnavailable(f"RabbitMQ at {connection.where} did not confirm {what} within {timeout:g} s: {why}")


def log_blocked(what: str) -> None:
    """Log that a worker waits for the end of an alarm."""
    log.warning("waiting to store %s until the broker's memory or disk alarm ends", what)


async def confirmed(
    sent: "asyncio.Future[None]", connection: Connection, what: str, timeout: float, *, patient: bool
) -> None:
    """Wait until a sent message is confirmed. Raises the error that rejected it, or BrokerUnavailable after `timeout`
    seconds.

    With `patient`, the wait continues while an alarm lasts, because giving up would only cause the job to run again.
    """
    loop = asyncio.get_running_loop()
    alarm: asyncio.TimerHandle

    def overdue() -> None:
        nonlocal alarm
        if sent.done():
            return
        if patient and connection.blocked:
            log_blocked(what)
            alarm = loop.call_later(timeout, overdue)
        else:
            sent.set_exception(unconfirmed(connection, what, timeout))

    # A plain timer is several times cheaper than asyncio.timeout, which matters for every job.
    alarm = loop.call_later(timeout, overdue)
    try:
        await sent
    finally:
        alarm.cancel()


def no_permission_to_ask(connection: Connection, exchange: str) -> Trouble:
    """The trouble of a user without permission to publish commands to workers."""
    cause = f"User {connection.address.username} of RabbitMQ at {connection.where} has no permission to query workers"
    return Trouble(cause, _ASKING_ADVICE.format(exchange=exchange))


async def find_limit(connection: Connection, queue: str) -> Trouble | None:
    """The limit of the virtual host that prevents the creation of a queue, if any. Creates and deletes a queue."""
    async with connection.spare_channel() as channel:
        try:
            await channel.call(channel.raw.queue_declare, queue, exclusive=True, auto_delete=True)
            await channel.call(channel.raw.queue_delete, queue)
        except BrokerRefused as error:
            # A user's name in the text of a missing permission may contain "limit".
            if channel.code != ACCESS_REFUSED and "limit" in str(error):
                return Trouble(str(error).rstrip("."), _LIMIT_ADVICE, stops_workers=True)
    return None


async def find_alarm(connection: Connection, queue: str) -> Trouble | None:
    """The current alarm, if any.

    Publishes to a queue that doesn't exist, since RabbitMQ reports alarms only to publishers. Returns None if the user
    has no permission to publish.
    """
    if connection.blocked:
        return trouble_of(connection)
    publisher: Publisher | None = None
    try:
        async with asyncio.timeout(ANSWERED_WITHIN):
            publisher = await Publisher.open(connection)
            # Twice, since during an alarm RabbitMQ still reads a connection's first message.
            for _ in range(2):
                try:
                    await publisher.send("", queue, _NOTHING, b"")
                except Unroutable:
                    continue
    except (TimeoutError, BrokerRefused):
        pass
    finally:
        if publisher is not None:
            publisher.channel.abandon()
    return trouble_of(connection)
