"""Declares the topology of events: two exchanges, the groups' queues, and the bindings between them.

Programs that publish and subscribe without Palermo declare the same (docs/internals/wire.md, "Events"): durable and
without arguments, since RabbitMQ refuses a declaration (406) whose arguments differ from the first.
"""

from palermo.brokers.rabbitmq.amqp.connection import Channel
from palermo.core.topics import distributor, gateway
from palermo.core.topology import LITERAL
from palermo.errors import BrokerRefused


class EventTopology:
    """The exchanges of one events prefix, and the patterns by which this session binds its groups' queues."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.gateway = gateway(prefix)
        self.distributor = distributor(prefix)
        #: By queue: the patterns by which it is bound whenever it is declared.
        self.topics: dict[str, tuple[str, ...]] = {}

    def is_group(self, queue: str) -> bool:
        """Whether the queue is a group's, by its name."""
        return queue.removeprefix(LITERAL).startswith(f"{self.prefix}_")

    async def make(self, channel: Channel) -> None:
        """Declare the exchanges and their binding. Raises BrokerRefused if other exchanges have these names."""
        for name, kind in ((self.gateway, "fanout"), (self.distributor, "topic")):
            if difference := await channel.declare_exchange(name, kind):
                raise BrokerRefused(
                    f"an exchange {name!r} exists that is not a durable {kind} one ({difference.text}); choose another"
                    " prefix with the setting events_prefix."
                )
        await channel.call(channel.raw.exchange_bind, self.distributor, self.gateway)

    async def bind(self, channel: Channel, amqp_name: str, queue: str) -> None:
        """Bind a group's queue, `amqp_name` on RabbitMQ, by the patterns that this session knows of."""
        topics = self.topics.get(queue, ())
        if topics:
            await self.make(channel)
        for topic in topics:
            await channel.bind(amqp_name, self.distributor, routing_key=topic)
