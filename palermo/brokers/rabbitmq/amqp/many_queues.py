"""Queries and declarations of many queues, pipelined: sent without waiting for each answer.

If a queue is missing, or has other arguments, RabbitMQ closes the channel and drops everything that was sent after that
request. So the first batch is small, and each next one is twice as large as the successful part of the last.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.replies import PRECONDITION_FAILED, Difference, Probe

#: The largest batch.
_TOGETHER = 500


async def probe_all(connection: Connection, queues: Collection[str]) -> dict[str, Probe]:
    """The state of these queues in RabbitMQ. Creates nothing. Raises the errors of Connection.probe."""
    return await _in_batches(connection, list(queues), _probe)


async def declare_all(
    connection: Connection, queues: Mapping[str, str], exchange: str, arguments: Mapping[str, Any]
) -> dict[str, Probe]:
    """Create durable queues, given with their routing keys, and bind them to the exchange, unless that is "".

    Returns the state of each: an error for an existing queue with other arguments, which is left unchanged. Raises
    NotFound if a binding fails.
    """

    def declare(channel: Channel, names: list[str]) -> Awaitable[list[Probe]]:
        return _declare(channel, {name: queues[name] for name in names}, exchange, arguments)

    return await _in_batches(connection, list(queues), declare)


async def _in_batches(
    connection: Connection, names: list[str], ask: Callable[[Channel, list[str]], Awaitable[list[Probe]]]
) -> dict[str, Probe]:
    """Call `ask` with some of the names, which returns the states up to the first that closes the channel."""
    found, portion = list[Probe](), _TOGETHER
    while len(found) < len(names):
        async with connection.spare_channel() as channel:
            some = await ask(channel, names[len(found) : len(found) + portion])
        found += some
        portion = min(_TOGETHER, 2 * len(some))
    return dict(zip(names, found, strict=True))


async def _probe(channel: Channel, queues: list[str]) -> list[Probe]:
    """The state of the queues, up to the first one that closes the channel."""
    found, error = await channel.counted(len(queues), lambda: channel.connection.raw.count(channel.raw, queues))
    return found if error is None else [*found, channel.unanswered(error)]


async def _declare(
    channel: Channel, queues: Mapping[str, str], exchange: str, arguments: Mapping[str, Any]
) -> list[Probe]:
    """The state of the queues, up to the first one that closes the channel because it has other arguments."""
    send = channel.connection.raw.declare_and_bind
    found, error = await channel.counted(len(queues), lambda: send(channel.raw, queues, exchange, arguments))
    if error is None and exchange:
        # A binding gets no answer; the answer to this call shows that none was refused.
        await channel.prefetch(0)
    elif error is not None:
        if channel.code != PRECONDITION_FAILED or Difference.parse(str(error)) is None:
            raise error
        found.append(Probe(exists=True, error=error))
    return found
