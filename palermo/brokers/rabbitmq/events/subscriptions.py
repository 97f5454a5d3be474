"""The event subscriptions of all groups, kept in a stream, because AMQP cannot list bindings.

A record replaces the last one of its group, so the stream only grows when the code that subscribes changes.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Stream
from palermo.contract.events import Subscription
from palermo.core.topology import internal


class Subscriptions:
    """The subscriptions of one exchange, as one session sees them."""

    def __init__(self, exchange: str, publisher: Callable[[], Awaitable[Publisher]], *, patience: float) -> None:
        """`patience` is that of palermo.brokers.rabbitmq.amqp.stream.Stream."""
        name = internal(exchange, "subscriptions")
        self._stream = Stream(name, publisher, patience=patience, holds="which groups subscribe to events", copied=True)

    async def put(self, subscription: Subscription) -> None:
        """Add a subscription, or replace that of its group; returns once it is stored."""
        await self._stream.write({"subscribe": subscription.to_plain()})

    async def remove(self, group: str) -> None:
        """Remove the subscription of a group."""
        await self._stream.write({"unsubscribe": group})

    async def all(self, connection: Connection) -> dict[str, Subscription]:
        """All subscriptions, by group. Raises BrokerUnavailable if the stream is down and stays so."""
        found: dict[str, Subscription] = {}

        def on_record(record: Mapping[str, Any]) -> None:
            found.pop(str(record.get("unsubscribe", "")), None)
            if "subscribe" in record:
                try:
                    one = Subscription.from_plain(record["subscribe"])
                except (KeyError, TypeError, ValueError):
                    return  # Written by a later version or another program.
                found[one.group] = one

        follower = await self._stream.follow(connection, on_record)
        if follower is not None:
            await follower.close()
        return dict(sorted(found.items()))
