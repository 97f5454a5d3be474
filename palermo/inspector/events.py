"""`inspector.events`: list groups, show the topology, replay events, unsubscribe groups."""

from palermo.contract.events import ReplayFilter, Subscription
from palermo.contract.row_types import TopicRow
from palermo.contract.rows import Row, iso_instant
from palermo.core.times import Instant, unix_seconds
from palermo.core.topics import check_group, check_pattern, distributor, gateway, group_queue
from palermo.inspector.context import Context, queue_rows
from palermo.inspector.judges import Progress


def _row(one: Subscription, queue: Row) -> TopicRow:
    return {
        "group": one.group,
        "topics": list(one.topics),
        "queue": one.queue,
        "function": one.function,
        "since": iso_instant(one.since),
        "pending": queue.get("pending", 0),
        "in_progress": queue.get("in_progress", 0),
        "workers": queue.get("workers", 0),
        "paused": queue.get("paused", False),
    }


class Events(Context):
    """The groups that subscribe to events."""

    def groups(self) -> list[TopicRow]:
        """Return the rows of all groups, by name."""
        found = self._ask(lambda broker: broker.events.subscriptions(), again=True)
        if not found:
            return []
        queues = {row["name"]: row for row in queue_rows(self._ask(lambda broker: broker.queues(), again=True))}
        return [_row(one, queues.get(one.queue, {})) for one in found]

    def topology(self) -> Row:
        """Return the exchanges and groups that carry events, and how many events are kept.

        `gateway` and `distributor` are RabbitMQ exchanges, and `prefix` is the start of their names. `kept` is the
        number of events that are kept for `max_age` seconds, or None if events aren't kept. `unsubscribed` is the
        `events_unsubscribed` setting. `groups` are rows as in `groups()`.
        """
        settings = self._client.settings
        return {
            "prefix": settings.prefix,
            "gateway": gateway(settings.prefix),
            "distributor": distributor(settings.prefix),
            "unsubscribed": settings.events_unsubscribed,
            "kept": self._ask(lambda broker: broker.events.kept(), again=True),
            "max_age": settings.events_max_age,
            "groups": self.groups(),
        }

    def replay(
        self,
        group: str,
        *,
        topic: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Deliver kept events to one group again, as jobs with new ids. Returns their number.

        By default these are the events of the group's topics; `topic` is a pattern to use instead. `since` and `until`
        limit the time. For events without a time, from other programs, the time when they were stored is used, which
        may differ by some seconds. Raises NotFound for a group without a subscription, and BrokerRefused if events
        aren't kept.
        """
        check_group(group)
        old = ReplayFilter(
            topic=None if topic is None else check_pattern(topic),
            since=None if since is None else unix_seconds(since),
            until=None if until is None else unix_seconds(until),
        )
        count = 0
        try:
            count = self._ask(lambda broker: broker.events.replay(group, old, progress=progress))
        finally:
            self._record("replay events", queue=self._queue(group), count=count, what=topic)
        return count

    def unsubscribe(self, group: str) -> None:
        """Stop delivering events to a group until one of its workers starts. Its queue is kept. Raises NotFound."""
        check_group(group)
        self._ask(lambda broker: broker.events.unsubscribe(group))
        self._record("unsubscribe", queue=self._queue(group), what=group)

    def _queue(self, group: str) -> str:
        settings = self._client.settings
        return group_queue(settings.exchange, settings.prefix, group)
