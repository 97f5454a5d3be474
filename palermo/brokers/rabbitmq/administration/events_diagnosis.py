"""Checks the exchanges and queues that carry events, without making any."""

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.events.subscriptions import Subscriptions
from palermo.contract.broker import Finding, SessionParameters
from palermo.core.topics import distributor, gateway
from palermo.core.topology import amqp_queue


async def look_at_events(session: SessionParameters, connection: Connection) -> list[Finding]:
    """One finding if all is well, or one for each problem. Raises PalermoError."""
    found: list[Finding] = []
    there = 0
    for name, kind in ((gateway(session.prefix), "fanout"), (distributor(session.prefix), "topic")):
        if not await connection.has_exchange(name):
            continue
        there += 1
        if difference := await connection.declare_exchange(name, kind):
            text = f"exchange {name} is there and is not a durable {kind} one: {difference.text}"
            found.append(Finding.problem("events", text, "Choose another prefix with the setting events_prefix."))
    if not there:
        return [Finding.ok("events", "none have been published or subscribed to here")]

    async def publisher() -> Publisher:
        return await Publisher.open(connection)

    known = await Subscriptions(session.exchange, publisher, patience=session.timeout).all(connection)
    for group, one in known.items():
        name = amqp_queue(session.exchange, one.queue)
        if not (await connection.probe(name)).exists:
            text = f"group {group} subscribes, and its queue {name} is not there: its events come to nobody"
            advice = f"Start a worker of the group, or take it away: palermo topics remove {group}"
            found.append(Finding.problem("events", text, advice))
    if there == 1:
        text = "one of the exchanges is gone: no event comes to any group"
        found.append(Finding.problem("events", text, "Start a worker of any group, or publish one event."))
    return found or [Finding.ok("events", f"{len(known)} group(s) subscribe, by {gateway(session.prefix)}")]
