"""What a broker does with events: the part of the contract that is behind `Broker.events`.

An event is published once and comes, as a job of its own, into the queue of every group that subscribes to its
topic. A group is known by its subscription, which lasts until it is taken back, whether a worker of the group lives
or not. Events may be kept besides, for a while: what nobody subscribed to is not gone then, and old ones can be told
again.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from palermo.core.topics import Event, matches
from palermo.core.values import dataclass

if TYPE_CHECKING:
    from palermo.broker import Swept

#: For how many seconds events are kept, and in how many bytes, unless settings say otherwise.
EVENTS_AGE = 7 * 86_400.0
EVENTS_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A group that wants to know of some events."""

    group: str
    #: Where its events wait; palermo.core.topics.group_queue.
    queue: str
    #: Patterns of topics, sorted; an event that several of them match comes once.
    topics: tuple[str, ...]
    #: The code that handles them, for people: `shop.mail.on_order`; "" where that is not known.
    function: str = ""
    #: When the group first subscribed, in Unix seconds.
    since: float = 0.0

    def wants(self, topic: str) -> bool:
        """Whether events of this topic come to the group."""
        return any(matches(pattern, topic) for pattern in self.topics)

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        return {
            "group": self.group,
            "queue": self.queue,
            "topics": list(self.topics),
            "function": self.function,
            "since": self.since,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Subscription":
        """The one that to_plain described. Raises KeyError, TypeError or ValueError for what is none."""
        return cls(
            group=str(plain["group"]),
            queue=str(plain["queue"]),
            topics=tuple(map(str, plain["topics"])),
            function=str(plain.get("function", "")),
            since=float(plain.get("since", 0.0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """Which of the events that are kept are meant."""

    #: Only those that this pattern matches; None for those that the group subscribes to.
    topic: str | None = None
    #: Only those published from one instant to another, in Unix seconds. What says of itself no time, as events of
    #: other programs may, goes by when it was stored, as exactly as the broker knows that.
    since: float | None = None
    until: float | None = None

    def means(self, subscription: Subscription, topic: str, at: float | None) -> bool:
        """Whether an event of this topic, published at this instant as far as is known, is meant."""
        wanted = subscription.wants(topic) if self.topic is None else matches(self.topic, topic)
        early = at is not None and self.since is not None and at < self.since
        late = at is not None and self.until is not None and at > self.until
        return wanted and not early and not late


ALL = Old()


class Events(Protocol):
    """See the module's first lines."""

    async def publish(self, event: Event) -> None:
        """Tell it to all groups that subscribe to its topic; returns once it is stored for each of them.

        Raises NoSubscriber for one that nobody subscribes to if the session does not keep events, BrokerUnavailable,
        BrokerRefused and PublishRefused. After the last three it may be stored, and publishing it again may double it.
        """

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        """See to it that from now on the group's events come to its queue, as long as no one unsubscribes.

        To be said again whenever a worker of the group starts: it changes nothing, mends what was taken away, and
        takes back patterns that are not among its topics any more. With `from_start` a group that subscribes for the
        first time gets those events too that are kept from before, each once, and the older first; returns how many.
        """

    async def unsubscribe(self, group: str) -> None:
        """Have no more events come to the group. Its queue stays, with what waits in it. Raises NotFound."""

    async def subscriptions(self) -> list[Subscription]:
        """All of them, by group."""

    async def replay(self, group: str, old: Old = ALL, *, progress: "Callable[[Swept], None] | None" = None) -> int:
        """Tell these events, which are kept, to this group once more, as jobs with new ids; returns how many.

        Raises NotFound for a group that does not subscribe, and BrokerRefused where events are not kept.
        """

    async def kept(self) -> int | None:
        """About how many events are kept; None if the session does not keep them."""
