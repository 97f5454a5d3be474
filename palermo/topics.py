"""Events for the inspector: who subscribes to what, how that is wired, and old events told again.

These are methods of palermo.inspector.Inspector, which names them.
"""

from typing import TYPE_CHECKING

from palermo.broker import Broker
from palermo.core.topics import check_group, check_pattern, distributor, gateway, group_queue
from palermo.events import Old, Subscription
from palermo.moments import Instant
from palermo.moments import instant as seconds
from palermo.rows import Row, instant

if TYPE_CHECKING:
    from palermo.failed import Progress
    from palermo.inspector import Inspector


def topics(inspector: "Inspector") -> list[Row]:
    """All groups that subscribe to events, by name.

    A row is `group`, `topics` (its patterns), `queue` (where its events wait), `function` (what handles them, "" where
    that is not known), `since`, and `pending`, `in_progress`, `workers` and `paused` of the queue.
    """
    found = inspector._ask(lambda broker: broker.events.subscriptions(), again=True)
    if not found:
        return []
    queues = {row["name"]: row for row in inspector.queues()}
    return [_row(one, queues.get(one.queue, {})) for one in found]


def wiring(inspector: "Inspector") -> Row:
    """What carries events, and how many there are.

    `gateway` and `distributor` are exchanges of RabbitMQ, `prefix` what their names begin with; `kept` is the number
    of events that are kept for `max_age` seconds, None where none are, and those that nobody subscribes to are
    refused (`unsubscribed`). `groups` are the rows of `topics`.
    """
    settings = inspector._client.settings
    return {
        "prefix": settings.prefix,
        "gateway": gateway(settings.prefix),
        "distributor": distributor(settings.prefix),
        "unsubscribed": settings.events_unsubscribed,
        "kept": inspector._ask(lambda broker: broker.events.kept(), again=True),
        "max_age": settings.events_max_age,
        "groups": topics(inspector),
    }


def replay(
    inspector: "Inspector",
    group: str,
    *,
    topic: str | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    progress: "Progress | None" = None,
) -> int:
    """Tell events that are kept to one group once more, as jobs with new ids; how many.

    Those that the group subscribes to, or those that the pattern `topic` matches; between two instants where they are
    given. The events of other programs may say of themselves no time; they go by when they were stored, within some
    seconds. Raises NotFound for a group that does not subscribe, BrokerRefused where events are not kept.
    """
    check_group(group)
    old = Old(
        topic=None if topic is None else check_pattern(topic),
        since=None if since is None else seconds(since),
        until=None if until is None else seconds(until),
    )
    count = 0

    async def ask(broker: Broker) -> int:
        return await broker.events.replay(group, old, progress=progress)

    try:
        count = inspector._ask(ask)
    finally:
        inspector._acted("replay events", queue=_queue(inspector, group), count=count, what=topic)
    return count


def unsubscribe(inspector: "Inspector", group: str) -> None:
    """Have no more events come to a group, until a worker of it starts; its queue stays. Raises NotFound."""
    check_group(group)
    inspector._ask(lambda broker: broker.events.unsubscribe(group))
    inspector._acted("unsubscribe", queue=_queue(inspector, group), what=group)


def _queue(inspector: "Inspector", group: str) -> str:
    settings = inspector._client.settings
    return group_queue(settings.exchange, settings.prefix, group)


def _row(one: Subscription, queue: Row) -> Row:
    return {
        "group": one.group,
        "topics": list(one.topics),
        "queue": one.queue,
        "function": one.function,
        "since": instant(one.since),
        "pending": queue.get("pending", 0),
        "in_progress": queue.get("in_progress", 0),
        "workers": queue.get("workers", 0),
        "paused": queue.get("paused", False),
    }
