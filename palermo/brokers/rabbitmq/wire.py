"""Messages to AMQP properties and back: docs/wire.md in pika's terms."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.link import Got
from palermo.brokers.rabbitmq.properties import Properties
from palermo.core.message import NO_HEADERS, HeaderValue, Message, from_wire, to_headers
from palermo.core.topics import OCTETS, as_job, group_of

PERSISTENT = 2

#: The AMQP properties that travel unchanged with a job. Left out on purpose: user_id (the broker checks it against
#: the connection's own user), cluster_id, and expiration (a failed or requeued job must not evaporate).
_KEPT = ("priority", "correlation_id", "reply_to", "timestamp", "type", "app_id")


def new_id() -> str:
    """An id for a message that came without one."""
    return str(uuid.uuid4())


def to_properties(message: Message) -> Properties:
    """The AMQP properties, headers among them, to publish the message with."""
    properties = Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding or None,
        headers=to_headers(message),
        delivery_mode=PERSISTENT,
        message_id=message.id,
    )
    if message.properties:
        for name, value in message.properties.items():
            setattr(properties, name, value)
    return properties


def to_message(properties: spec.BasicProperties, body: bytes, *, taken_from: str | None) -> Message:
    """The message in an AMQP delivery; never raises (see core.message.from_wire)."""
    kept: Mapping[str, Any] = NO_HEADERS
    for name in _KEPT:
        value = getattr(properties, name)
        if value is not None:
            kept = {**kept, name: value}
    headers: Mapping[str, HeaderValue] = properties.headers or NO_HEADERS
    return from_wire(
        message_id=properties.message_id,
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        headers=headers,
        body=body,
        taken_from=taken_from,
        new_id=new_id,
        properties=kept,
    )


def read(got: Got, queue: str | None) -> Message:
    """The message in what was taken from this queue; an event as the job that it is in its group's queue."""
    group = group_of(got.exchange, queue) if queue else ""
    message = to_message(got.properties, got.body, taken_from=queue)
    if not group:
        return message
    event = message if got.properties.content_type else replace(message, content_type=OCTETS)
    return as_job(event, group=group, topic=got.routing_key)
