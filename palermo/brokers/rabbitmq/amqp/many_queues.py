"""Questions about many queues, and declarations of many, that are sent together: no answer is waited for between two.

A queue that is missing, or there with other arguments, closes the channel, and what was sent behind it is lost. So they
are sent in portions, each as large as twice what the last one came to: where many are missing, little is sent in vain.
"""

from collections.abc import Collection, Mapping
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.replies import PRECONDITION_FAILED, Difference, Probe

#: The largest portion.
_TOGETHER = 500


async def probe_all(connection: Connection, queues: Collection[str]) -> dict[str, Probe]:
    """What RabbitMQ knows of these queues; nothing is created. Raises what Connection.probe raises."""
    names, found, portion = list(queues), list[Probe](), _TOGETHER
    while len(found) < len(names):
        async with connection.spare_channel() as channel:
            some = await _probe(channel, names[len(found) : len(found) + portion])
        found += some
        portion = min(_TOGETHER, 2 * len(some))
    return dict(zip(names, found, strict=True))


async def declare_all(
    connection: Connection, queues: Mapping[str, str], exchange: str, arguments: Mapping[str, Any]
) -> dict[str, Probe]:
    """Make durable queues, given with their routing keys, and bind them to the exchange, unless that is "".

    Returns what RabbitMQ knows of them: an error of one that is there otherwise, and stays as it is. Raises NotFound if
    a binding cannot be made.
    """
    names, found, portion = list(queues), list[Probe](), _TOGETHER
    while len(found) < len(names):
        some = {name: queues[name] for name in names[len(found) : len(found) + portion]}
        async with connection.spare_channel() as channel:
            answers = await _declare(channel, some, exchange, arguments)
        found += answers
        portion = min(_TOGETHER, 2 * len(answers))
    return dict(zip(names, found, strict=True))


async def _probe(channel: Channel, queues: list[str]) -> list[Probe]:
    """What is known of the queues, up to the first one that closes the channel."""
    found, error = await channel.counted(len(queues), lambda: channel.connection.raw.count(channel.raw, queues))
    return found if error is None else [*found, channel.unanswered(error)]


async def _declare(
    channel: Channel, queues: Mapping[str, str], exchange: str, arguments: Mapping[str, Any]
) -> list[Probe]:
    """What is known of the queues, up to the first one that closes the channel, since it is there otherwise."""
    send = channel.connection.raw.declare_and_bind
    found, error = await channel.counted(len(queues), lambda: send(channel.raw, queues, exchange, arguments))
    if error is None and exchange:
        # A binding is not answered: after this it is known that none was refused.
        await channel.prefetch(0)
    elif error is not None:
        if channel.code != PRECONDITION_FAILED or Difference.parse(str(error)) is None:
            raise error
        found.append(Probe(exists=True, error=error))
    return found
