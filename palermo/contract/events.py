"""Events: the part of a broker that brings events to the groups that subscribe to them, `Broker.events`.

A publisher publishes an event once, and it comes, as a job of its own, into the queue of every group that subscribes
to its topic. A group is known by its subscription, which lasts until it is taken back, whether or not a worker of the
group lives. A broker may also keep events for a while: then an event that nobody subscribed to is not lost, and old
events can be replayed.
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

#: For how many seconds events are kept, and in how many bytes, unless settings say otherwise.
EVENTS_AGE = 7 * 86_400.0
EVENTS_BYTES = 1_000_000_000


class Subscription(Plain, frozen=True, kw_only=True):
    """A group's subscription to the events of some topics."""

    group: str
    #: The queue where its events wait; palermo.core.topics.group_queue.
    queue: str
    #: Patterns of topics, sorted; an event that several of them match comes once.
    topics: tuple[str, ...]
    #: The code that handles them, for people: `shop.mail.on_order`; "" where that is not known.
    function: str = ""
    #: When the group first subscribed, in Unix seconds.
    since: Instant = 0.0

    def wants(self, topic: str) -> bool:
        """Whether events of this topic come to the group."""
        return any(matches(pattern, topic) for pattern in self.topics)

    def job(self, event: Event, *, run: str = "", old: bool = False) -> Message:
        """The job that an event becomes in the group's queue; see palermo.core.topics.as_job for `run`.

        That of an `old` event has no time of publication, so that its wait is not counted from then.
        """
        job = as_job(event.message, group=self.group, topic=event.topic, run=run)
        return replace(job, queue=self.queue, queued_at=None if old else job.queued_at)

    @classmethod
    def from_stored(cls, group: str | bytes, stored: Any) -> "Subscription | None":
        """The subscription in a stored text; None, with a warning, if it cannot be read."""
        remedy = "its group gets no events until its worker starts again, or `palermo topics unsubscribe` removes it"
        return read_record(cls.from_plain, stored, what="a subscription", name=group, remedy=remedy)


def no_group(group: str) -> NotFound:
    """The error for a group that does not subscribe."""
    return NotFound(f"no group {group!r} subscribes to events; `palermo topics` lists the groups.")


def no_subscriber(event: Event) -> NoSubscriber:
    """The error for an event that no group gets, and that is not kept."""
    return NoSubscriber(
        f"no group subscribes to topic {event.topic!r}: event {event.message.id} was refused. Start a worker that"
        " subscribes, or have such events kept by the setting events_unsubscribed."
    )


def not_kept() -> BrokerRefused:
    """The error for a replay where events are not kept."""
    return BrokerRefused("events are not kept here, so none can be told again; see setting events_unsubscribed.")


class ReplayFilter(Struct, frozen=True, kw_only=True):
    """The conditions that the kept events of a replay must meet."""

    #: Only events whose topics this pattern matches; None for those that the group subscribes to.
    topic: str | None = None
    #: Only events published from one instant to another, in Unix seconds. An event that has no time of its own, as
    #: events of other programs may, goes by when it was stored, as exactly as the broker knows that.
    since: float | None = None
    until: float | None = None

    def matches(self, subscription: Subscription, topic: str, at: float | None) -> bool:
        """Whether the replay includes an event of this topic, published at this instant as far as is known."""
        wanted = subscription.wants(topic) if self.topic is None else matches(self.topic, topic)
        early = at is not None and self.since is not None and at < self.since
        late = at is not None and self.until is not None and at > self.until
        return wanted and not early and not late


ALL_EVENTS = ReplayFilter()


class Events(Protocol):
    """The part of a broker that publishes, keeps and replays events."""

    async def publish(self, event: Event) -> None:
        """Publish an event to all groups that subscribe to its topic; returns once it is stored for each of them.

        Raises NoSubscriber for an event that nobody subscribes to if the session does not keep events,
        BrokerUnavailable, BrokerRefused and PublishRefused. After the last three the event may be stored, and
        publishing it again may double it.
        """

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        """Bring the group's events to its queue from now on, until someone unsubscribes the group.

        Every worker of the group calls this when it starts: that changes nothing, repairs what was taken away, and
        takes back patterns that are not among its topics any more. With `from_start`, a group that subscribes for the
        first time also gets the events that are kept from before, each once, the oldest first; returns how many.
        """

    async def unsubscribe(self, group: str) -> None:
        """Bring no more events to the group. Its queue stays, with the jobs that wait in it. Raises NotFound."""

    async def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by group."""

    async def replay(
        self, group: str, old: ReplayFilter = ALL_EVENTS, *, progress: "Callable[[SweepProgress], None] | None" = None
    ) -> int:
        """Give the group these kept events again, as jobs with new ids; returns how many.

        Raises NotFound for a group that does not subscribe, and BrokerRefused where events are not kept.
        """

    async def kept(self) -> int | None:
        """About how many events are kept; None if the session does not keep them."""
