"""Taking away what a test left on a broker that it shares with others, maybe with people."""

import asyncio
import json
import time
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from palermo.broker import Session, open_broker
from palermo.brokers.rabbitmq.seats import Seat, seat_queue
from palermo.core.address import parse_url
from palermo.core.topics import distributor, gateway
from palermo.core.topology import amqp_queue, internal

#: How often deleting is tried: RabbitMQ 3.10.8 closes the connection of whoever deletes a stream too soon (541).
_ATTEMPTS = 5


def delete_all(url: str, exchange: str) -> None:
    """Delete all that one exchange's jobs ever made there; nothing if they made nothing."""
    names = asyncio.run(_queue_names(url, exchange))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _delete(url, exchange, names)
            return
        except ConnectionClosedByBroker:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(0.2 * attempt)


def _delete(url: str, exchange: str, names: list[str]) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        later = _stretches(connection, internal(exchange, "later"))
        seats = _seats(connection, exchange)
        channel = connection.channel()
        for name in names:
            channel.queue_delete(amqp_queue(exchange, name))
        for stream in ("registry", "pauses", "cancels", "starts", "failed-log", "journal", "events", "subscriptions"):
            channel.queue_delete(internal(exchange, stream))
        for name in ("later", "recurring", "tenants", *(f"later.{name}" for name in later), *seats):
            channel.queue_delete(internal(exchange, name))
        ours = (internal(exchange, "control"), internal(exchange, "presence"))
        for name in (exchange, *ours, gateway(exchange), distributor(exchange)):
            channel.exchange_delete(name)


def _seats(connection: pika.BlockingConnection, exchange: str) -> set[str]:
    """The queues of tenants."""
    seats = {Seat(*name) for name in _listed(connection, internal(exchange, "tenants"))}
    return {seat_queue(exchange, seat).removeprefix(internal(exchange, "")) for seat in seats}


def _stretches(connection: pika.BlockingConnection, queue: str) -> set[str]:
    """The stretches of time that delayed jobs waited in."""
    return set(_listed(connection, queue))


def _listed(connection: pika.BlockingConnection, queue: str) -> list[Any]:
    """What is in a list of stretches or tenants."""
    channel = connection.channel()
    names: list[Any] = []
    try:
        for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=0.2):
            if body is None:
                break
            record = json.loads(body)
            names += record.get("all") or [record["made"]]
    except ChannelClosedByBroker:  # nobody ever delayed a job
        return names
    channel.close()
    return names


async def _queue_names(url: str, exchange: str) -> list[str]:
    broker = await open_broker(Session(address=parse_url(url), exchange=exchange, name="tests"))
    try:
        return [queue.name for queue in await broker.queues()]
    finally:
        await broker.close()
