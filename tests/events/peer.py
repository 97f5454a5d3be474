"""A program that shares events through bare pika: its own names and declarations, nothing of Palermo."""

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel


class Peer:
    """The other program, on a channel that confirms: what it pushed is there when `push` returns."""

    def __init__(self, connection: pika.BlockingConnection, prefix: str) -> None:
        self.channel: BlockingChannel = connection.channel()
        self.channel.confirm_delivery()
        self.prefix = prefix
        self.gateway = f"{prefix}_gateway"
        self.distributor = f"{prefix}_distributor"

    def push(self, topic: str, content: bytes) -> None:
        """Without id, content type and headers."""
        self.wire()
        self.channel.basic_publish(self.gateway, topic, content, pika.BasicProperties(delivery_mode=2))

    def listen(self, group: str, topic: str) -> None:
        """Bind a group's queue; `take` asks for what comes."""
        self.wire()
        name = f"{self.prefix}_{group}"
        self.channel.queue_declare(name, passive=False, durable=True, exclusive=False, auto_delete=False)
        self.channel.queue_bind(name, self.distributor, topic)

    def take(self, group: str) -> tuple[Any, pika.BasicProperties, bytes]:
        """The next event of a group."""
        method, properties, body = self.channel.basic_get(f"{self.prefix}_{group}", auto_ack=True)
        assert method is not None, f"no event for {group}"
        return method, properties, body

    def wire(self) -> None:
        self.channel.exchange_declare(self.gateway, "fanout", passive=False, durable=True, auto_delete=False)
        self.channel.exchange_declare(self.distributor, "topic", passive=False, durable=True, auto_delete=False)
        self.channel.exchange_bind(self.distributor, self.gateway)
