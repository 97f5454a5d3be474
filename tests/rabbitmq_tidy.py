"""Taking away what a test left on a broker that it shares with others, maybe with people."""

import asyncio
import json
import time
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, tenant_queue_name
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.topics import distributor, gateway
from palermo.core.topology import amqp_queue, internal
from tests.rabbitmq_node import Node, binary

#: How often deleting is tried: RabbitMQ 3.10.8 closes the connection if a stream is deleted too soon (541).
_ATTEMPTS = 10

#: Deletes all queues and exchanges whose names begin with the exchange's; the value is how many queues are left.
#: A queue may end by itself meanwhile.
_DELETE = """
begin
    Ours = fun({resource, _, _, Name}) -> binary:longest_common_prefix([Name, PREFIX]) =:= byte_size(PREFIX) end,
    Queues = fun() -> [Queue || Queue <- rabbit_amqqueue:list(<<"/">>), Ours(amqqueue:get_name(Queue))] end,
    [catch rabbit_amqqueue:delete(Queue, false, false, <<"tests">>) || Queue <- Queues()],
    Exchanges = [element(2, Exchange) || Exchange <- rabbit_exchange:list(<<"/">>)],
    [rabbit_exchange:delete(Exchange, false, <<"tests">>) || Exchange <- Exchanges, Ours(Exchange)],
    length(Queues())
end
"""


class Tidy:
    """Deletes all that the jobs of an exchange made on a broker."""

    def __init__(self) -> None:
        #: The nodes of the tests' own, by URL.
        self.nodes: dict[str, Node] = {}

    def __call__(self, url: str, exchange: str) -> None:
        # Fast path: such a node looks for the names itself, which takes 0.03 s of processor time and not 0.1 s.
        if url in self.nodes:
            _delete_in(self.nodes[url], exchange)
        else:
            delete_all(url, exchange)


def _delete_in(node: Node, exchange: str) -> None:
    expression = " ".join(_DELETE.replace("PREFIX", binary(exchange)).split())
    for attempt in range(1, _ATTEMPTS + 1):
        if node.evaluate(expression) == "0":
            return
        time.sleep(0.2 * attempt)


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
        later = {"soon", "new", *_listed(connection, internal(exchange, "later"))}
        tenant_queues = _tenant_queues(connection, exchange)
        channel = connection.channel()
        for name in names:
            channel.queue_delete(amqp_queue(exchange, name))
        for stream in ("facts", "cancels", "starts", "failed-log", "journal", "events"):
            channel.queue_delete(internal(exchange, stream))
        for name in ("later", "recurring", "tenants", *(f"later.{name}" for name in later), *tenant_queues):
            channel.queue_delete(internal(exchange, name))
        ours = (internal(exchange, "control"), internal(exchange, "presence"))
        for name in (exchange, *ours, gateway(exchange), distributor(exchange)):
            channel.exchange_delete(name)


def _tenant_queues(connection: pika.BlockingConnection, exchange: str) -> set[str]:
    """The queues of tenants."""
    tenant_queues = {TenantQueue(*name) for name in _listed(connection, internal(exchange, "tenants"))}
    return {
        tenant_queue_name(exchange, tenant_queue).removeprefix(internal(exchange, "")) for tenant_queue in tenant_queues
    }


def _listed(connection: pika.BlockingConnection, queue: str) -> list[Any]:
    """What is in a list of buckets or tenants."""
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
    broker = await open_broker(SessionParameters(address=parse_url(url), exchange=exchange, name="tests", timeout=60))
    try:
        return [queue.name for queue in await broker.queues()]
    finally:
        await broker.close()
