"""Converts messages to AMQP properties and back: docs/internals/wire.md in pika's terms."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Got
from palermo.brokers.rabbitmq.amqp.delivery_frames import Delivered
from palermo.brokers.rabbitmq.amqp.fields import as_table, write_field
from palermo.brokers.rabbitmq.amqp.properties import PERSISTENT, Properties, read_properties, write_plain
from palermo.core.message import HEADER_OF, NO_HEADERS, HeaderValue, Message, from_wire, to_headers
from palermo.core.topics import OCTETS, as_job, group_of

#: The AMQP properties that travel unchanged with a job. Left out on purpose: user_id (the broker checks it against
#: the connection's own user), cluster_id, and expiration (a failed or requeued job must not evaporate).
_KEPT = frozenset({"priority", "correlation_id", "reply_to", "timestamp", "type", "app_id"})


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


def written(message: Message) -> bytes:
    """The same properties as bytes of the wire. Raises ValueError or struct.error for a value no header can hold.

    A new job, as nearly all are, is written without pika's object and without a dict of headers.
    """
    if message.properties or message.extra or message.failure is not None or message.attempts:
        return b"".join(to_properties(message).encode())
    id = message.id
    pieces = [write_field("id", id), _route(message.job, message.queue)]
    for name, value in vars(message).items():
        if value is not None and name in _BESIDES:
            header, unless_empty = _BESIDES[name]
            if value or not unless_empty:
                pieces.append(write_field(header, value))
    return write_plain(message.content_type, message.content_encoding, as_table(pieces), PERSISTENT, id)


#: The headers that `written` writes besides the id and those that many messages share.
_BESIDES = {name: header for name, header in HEADER_OF.items() if name not in ("job", "queue")}


@lru_cache(maxsize=1_024)
def _route(job: str, queue: str) -> bytes:
    """The headers that say which job it is and where it belongs."""
    return b"".join(write_field(HEADER_OF[name][0], value) for name, value in (("job", job), ("queue", queue)) if value)


def to_message(properties: Properties, body: bytes, *, taken_from: str | None) -> Message:
    """The message in an AMQP delivery; never raises (see core.message.from_wire)."""
    return message_of(vars(properties), body, taken_from=taken_from)


def message_of(properties: Mapping[str, Any], body: bytes, *, taken_from: str | None) -> Message:
    """The message in AMQP properties by name; those that were not sent may be None or missing."""
    find = properties.get
    kept: Mapping[str, Any] = NO_HEADERS
    if not _KEPT.isdisjoint(properties):
        kept = {name: value for name in _KEPT if (value := find(name)) is not None} or NO_HEADERS
    headers: Mapping[str, HeaderValue] = find("headers") or NO_HEADERS
    return from_wire(
        message_id=find("message_id"),
        content_type=find("content_type"),
        content_encoding=find("content_encoding"),
        headers=headers,
        body=body,
        taken_from=taken_from,
        new_id=new_id,
        properties=kept,
    )


def read(got: Got, queue: str | None) -> Message:
    """The message in a delivery from this queue; an event becomes the job that it is in its group's queue."""
    message = to_message(got.properties, got.body, taken_from=queue)
    return _as_job(message, got.exchange, got.routing_key, queue, typed=bool(got.properties.content_type))


def read_delivered(found: Delivered, data: bytes, queue: str) -> Message:
    """The same as `read`, for a delivery whose properties are still in the buffer. Raises UnknownField."""
    properties = read_properties(data, found.properties)
    message = message_of(properties, found.body, taken_from=queue)
    return _as_job(message, found.exchange, found.routing_key, queue, typed="content_type" in properties)


def _as_job(message: Message, exchange: str, topic: str, queue: str | None, *, typed: bool) -> Message:
    group = group_of(exchange, queue) if queue else ""
    if not group:
        return message
    return as_job(message if typed else replace(message, content_type=OCTETS), group=group, topic=topic)
