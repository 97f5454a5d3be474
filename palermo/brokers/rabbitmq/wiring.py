"""What carries events: two exchanges, the groups' queues, and the bindings between them.

Declared as other programs declare them who publish and subscribe without Palermo (docs/wire.md, "Events"): durable
and without arguments, since RabbitMQ refuses a declaration (406) that has others than the first had.
"""

from palermo.brokers.rabbitmq.link import Channel
from palermo.brokers.rabbitmq.translate import PRECONDITION_FAILED
from palermo.core.topics import distributor, gateway
from palermo.core.topology import LITERAL
from palermo.errors import BrokerRefused, PalermoError


class Wiring:
    """The names of one system of events, and what this session has its queues bound by."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.gateway = gateway(prefix)
        self.distributor = distributor(prefix)
        #: By queue, the patterns that it is to be bound by whenever it is declared.
        self.topics: dict[str, tuple[str, ...]] = {}

    def is_group(self, queue: str) -> bool:
        """Whether the queue is a group's, by its name."""
        return queue.removeprefix(LITERAL).startswith(f"{self.prefix}_")

    async def make(self, channel: Channel) -> None:
        """Declare the exchanges and the binding between them. Raises BrokerRefused where others have their names."""
        for name, kind in ((self.gateway, "fanout"), (self.distributor, "topic")):
            try:
                await channel.call(channel.raw.exchange_declare, name, kind, durable=True)
            except PalermoError as error:
                if channel.code == PRECONDITION_FAILED:
                    raise BrokerRefused(
                        f"an exchange {name!r} exists that is not a durable {kind} one ({error}); choose another"
                        " prefix with the setting events_prefix."
                    ) from error
                raise
        await channel.call(channel.raw.exchange_bind, self.distributor, self.gateway)

    async def bind(self, channel: Channel, amqp_name: str, queue: str) -> None:
        """Bind a group's queue, called so on the broker, by the patterns that this session knows of."""
        topics = self.topics.get(queue, ())
        if topics:
            await self.make(channel)
        for topic in topics:
            await channel.call(channel.raw.queue_bind, amqp_name, self.distributor, routing_key=topic)
