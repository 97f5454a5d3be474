"""What may be wrong with what carries events: looked at, and nothing made."""

from palermo.broker import Session
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.subscriptions import Subscriptions
from palermo.brokers.rabbitmq.translate import NOT_FOUND, PRECONDITION_FAILED
from palermo.core.topics import distributor, gateway
from palermo.core.topology import amqp_queue
from palermo.errors import PalermoError
from palermo.findings import Finding


async def look_at_events(session: Session, link: Link) -> list[Finding]:
    """One finding for all that is well, or one for each thing that is not. Raises PalermoError."""
    found: list[Finding] = []
    there = 0
    for name, kind in ((gateway(session.prefix), "fanout"), (distributor(session.prefix), "topic")):
        channel = await link.channel()
        try:
            await channel.call(channel.raw.exchange_declare, name, passive=True)
            there += 1
            await channel.call(channel.raw.exchange_declare, name, kind, durable=True)
        except PalermoError as error:
            if channel.code == NOT_FOUND:
                continue
            if channel.code != PRECONDITION_FAILED:
                raise
            text = f"exchange {name} is there and is not a durable {kind} one: {error}"
            found.append(Finding.problem("events", text, "Choose another prefix with the setting events_prefix."))
        else:
            await channel.close()
    if not there:
        return [Finding.ok("events", "none have been published or subscribed to here")]

    async def publisher() -> Publisher:
        return await Publisher.open(link)

    known = await Subscriptions(session.exchange, publisher, patience=session.timeout).all(link)
    for group, one in known.items():
        channel = await link.channel()
        name = amqp_queue(session.exchange, one.queue)
        try:
            await channel.call(channel.raw.queue_declare, name, passive=True)
        except PalermoError:
            if channel.code != NOT_FOUND:
                raise
            text = f"group {group} subscribes, and its queue {name} is not there: its events come to nobody"
            advice = f"Start a worker of the group, or take it away: palermo topics remove {group}"
            found.append(Finding.problem("events", text, advice))
        else:
            await channel.close()
    if there == 1:
        text = "one of the exchanges is gone: no event comes to any group"
        found.append(Finding.problem("events", text, "Start a worker of any group, or publish one event."))
    return found or [Finding.ok("events", f"{len(known)} group(s) subscribe, by {gateway(session.prefix)}")]
