"""A program that shares events as that of seed 000 does: bare pika, its names and declarations, nothing of Palermo."""

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel


class Peer:
    """PersistentQueue and ExchangeToExchangeBindings, method by method."""

    def __init__(self, channel: BlockingChannel, queue_prefix: str) -> None:
        self.channel = channel
        self.queue_prefix = queue_prefix
        self.gateway = f"{queue_prefix}_gateway"
        self.distributor = f"{queue_prefix}_distributor"

    def push(self, topic: str, content: bytes) -> None:
        """pushSinglePersistentMessage: no id, no content type, no headers."""
        self.wire()
        self.channel.basic_publish(self.gateway, topic, content, pika.BasicProperties(delivery_mode=2))

    def listen(self, queue_id: str, topic: str) -> None:
        """addListener, without the consumer: `take` asks instead."""
        self.wire()
        name = f"{self.queue_prefix}_{queue_id}"
        self.channel.queue_declare(name, passive=False, durable=True, exclusive=False, auto_delete=False)
        self.channel.queue_bind(name, self.distributor, topic)

    def take(self, queue_id: str) -> tuple[Any, pika.BasicProperties, bytes] | None:
        """The next event of a listener."""
        method, properties, body = self.channel.basic_get(f"{self.queue_prefix}_{queue_id}", auto_ack=True)
        return None if method is None else (method, properties, body)

    def wire(self) -> None:
        """wireExchangesForQueuePersistence."""
        self.channel.exchange_declare(self.gateway, "fanout", passive=False, durable=True, auto_delete=False)
        self.channel.exchange_declare(self.distributor, "topic", passive=False, durable=True, auto_delete=False)
        self.channel.exchange_bind(self.distributor, self.gateway)
