"""Events: the part of a broker that delivers events to the groups that subscribe to them, `Broker.events`.

A publisher publishes an event once. It arrives, as a separate job, in the queue of every group that subscribes to
its topic. A group exists through its subscription, which lasts until it is removed, whether or not a worker of the
group runs. A broker may also keep events for a while: then an event without subscribers is not lost, and old events
can be replayed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.stored_records import Instant, read_record
from palermo.core.message import Message
from palermo.core.plain import Plain
from palermo.core.topics import Event, as_job, matches
from palermo.errors import BrokerRefused, NoSubscriber, NotFound

if TYPE_CHECKING:
    from palermo.contract.sweep import SweepProgress

#: Default age and size limits of kept events, in seconds and bytes.
EVENTS_AGE = 7 * 86_400.0
EVENTS_BYTES = 1_000_000_000


class Subscription(Plain, frozen=True, kw_only=True):
    """A group's subscription to the events of some topics."""

    group: str
    #: The queue of its events; palermo.core.topics.group_queue.
    queue: str
    #: Patterns of topics, sorted; an event that matches several of them is delivered once.
    topics: tuple[str, ...]
    #: The code that handles them, as shown to users: `shop.mail.on_order`; "" if unknown.
    function: str = ""
    #: When the group first subscribed, in Unix seconds.
    since: Instant = 0.0

    def wants(self, topic: str) -> bool:
        """Whether the group gets events with this topic."""
        return any(matches(pattern, topic) for pattern in self.topics)

    def job(self, event: Event, *, run: str = "", old: bool = False) -> Message:
        """The job that an event becomes in the group's queue; see palermo.core.topics.as_job for `run`.

        The job of an `old` event has no publication time, so that its waiting time isn't counted from the publication.
        """
        job = as_job(event.message, group=self.group, topic=event.topic, run=run)
        return replace(job, queue=self.queue, queued_at=None if old else job.queued_at)

    @classmethod
    def from_stored(cls, group: str | bytes, stored: Any) -> "Subscription | None":
        """The subscription in a stored text; None, with a warning, if it cannot be read."""
        remedy = "its group gets no events until one of its workers starts again or `palermo topics remove` removes it"
        return read_record(cls.from_plain, stored, what="a subscription", name=group, remedy=remedy)


def no_group(group: str) -> NotFound:
    """The error for a group that does not subscribe."""
    return NotFound(f"no group {group!r} subscribes to events; `palermo topics` lists the groups.")


def no_subscriber(event: Event) -> NoSubscriber:
    """The error for an event that no group gets, and that is not kept."""
    return NoSubscriber(
        f"no group subscribes to topic {event.topic!r}, so event {event.message.id} was refused. Start a worker that"
        " subscribes, or set events_unsubscribed to keep such events."
    )


def not_kept() -> BrokerRefused:
    """The error for a replay without kept events."""
    return BrokerRefused("events are not kept, so there are none to replay. See the events_unsubscribed setting.")


class ReplayFilter(Struct, frozen=True, kw_only=True):
    """The conditions on the kept events of a replay."""

    #: A pattern for the events' topics; None for the group's own patterns.
    topic: str | None = None
    #: Bounds of the publication time, in Unix seconds. For an event of another program without a time, the time when it
    #: was stored counts, as precisely as the broker knows it.
    since: float | None = None
    until: float | None = None

    def matches(self, subscription: Subscription, topic: str, at: float | None) -> bool:
        """Whether the replay includes an event with this topic and time; `at` is None if the time is unknown."""
        wanted = subscription.wants(topic) if self.topic is None else matches(self.topic, topic)
        early = at is not None and self.since is not None and at < self.since
        late = at is not None and self.until is not None and at > self.until
        return wanted and not early and not late


ALL_EVENTS = ReplayFilter()


class Events(Protocol):
    """The part of a broker that publishes, keeps and replays events."""

    async def publish(self, event: Event) -> None:
        """Publish an event to all groups that subscribe to its topic; returns once it is stored for each of them.

        Raises NoSubscriber for an event without subscribers if the session does not keep events, BrokerUnavailable,
        BrokerRefused and PublishRefused. After the last three the event may be stored, and publishing it again may
        duplicate it.
        """

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        """Deliver events to the group's queue from now on, until the group is unsubscribed.

        Every worker of the group calls this when it starts. That repairs anything missing, and removes patterns that
        the group no longer has. With `from_start`, a group that subscribes for the first time also gets the kept
        events, each once, oldest first. Returns their number.
        """

    async def unsubscribe(self, group: str) -> None:
        """End a subscription. The group's queue is kept, with its waiting jobs. Raises NotFound."""

    async def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by group."""

    async def replay(
        self, group: str, old: ReplayFilter = ALL_EVENTS, *, progress: "Callable[[SweepProgress], None] | None" = None
    ) -> int:
        """Deliver the kept events that match `old` to the group again, as jobs with new ids. Returns their number.

        Raises NotFound for a group that does not subscribe, and BrokerRefused if events are not kept.
        """

    async def kept(self) -> int | None:
        """Approximate number of kept events; None if the session does not keep them."""
