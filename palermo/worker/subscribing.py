"""A worker's part in events: what its modules subscribe to is subscribed to before it takes anything."""

import logging
from collections.abc import Iterable

from palermo.broker import Broker
from palermo.events import Subscription

log = logging.getLogger("palermo.worker")


async def subscribe(broker: Broker, subscriptions: Iterable[tuple[Subscription, bool]]) -> None:
    """See to it that events come to these groups, those that are kept too where a group begins from the start.

    Such a group's first time takes as long as telling it all of them.
    """
    for subscription, from_start in subscriptions:
        told = await broker.events.subscribe(subscription, from_start=from_start)
        log.info(
            "subscribed group=%s topics=%s queue=%s%s",
            subscription.group,
            ",".join(subscription.topics),
            subscription.queue,
            f" from_before={told}" if told else "",
        )
