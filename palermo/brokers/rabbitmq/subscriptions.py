"""Which groups subscribe to what, kept in a stream: AMQP cannot list bindings.

A record replaces the last one of its group, so the stream is as short as the history of the code that subscribes.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Stream
from palermo.core.topology import internal
from palermo.events import Subscription


class Subscriptions:
    """The subscriptions of one exchange, as one session sees them."""

    def __init__(self, exchange: str, publisher: Callable[[], Awaitable[Publisher]], *, patience: float) -> None:
        """`patience` is that of palermo.brokers.rabbitmq.stream.Stream."""
        name = internal(exchange, "subscriptions")
        self._stream = Stream(name, publisher, patience=patience, holds="which groups subscribe to events")

    async def put(self, subscription: Subscription) -> None:
        """Add one, or replace that of its group; returns once that is stored."""
        await self._stream.write({"subscribe": subscription.to_plain()})

    async def remove(self, group: str) -> None:
        """Forget that of a group."""
        await self._stream.write({"unsubscribe": group})

    async def all(self, link: Link) -> dict[str, Subscription]:
        """All there are now, by group. Raises BrokerUnavailable if the stream is down and stays so."""
        found: dict[str, Subscription] = {}

        def on_record(record: Mapping[str, Any]) -> None:
            found.pop(str(record.get("unsubscribe", "")), None)
            if "subscribe" in record:
                try:
                    one = Subscription.from_plain(record["subscribe"])
                except (KeyError, TypeError, ValueError):
                    return  # a later version's, or a stranger's
                found[one.group] = one

        follower = await self._stream.follow(link, on_record)
        if follower is not None:
            await follower.close()
        return dict(sorted(found.items()))
