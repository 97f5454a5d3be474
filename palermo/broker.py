"""What a broker must do: the contract between the runtime and the adapters, kept by tests/contract/broker_contract.py.

A Broker is one session with the place where jobs wait. It belongs to one event loop of one process, and it never
mends itself: when it is lost every call raises BrokerUnavailable, and its owner (the client, the worker) opens another.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from typing import Any, Protocol

from palermo.core.address import Address
from palermo.core.journal import JOURNAL_AGE, JOURNAL_BYTES
from palermo.core.lifecycle import Settlement
from palermo.core.message import Message
from palermo.core.patterns import QueueSelection
from palermo.core.permits import LimitInfo
from palermo.core.prefetch import ONE, Prefetch
from palermo.core.shares import TURN
from palermo.core.topology import CLASSIC, DEFAULT_EXCHANGE
from palermo.core.values import dataclass
from palermo.crew import Answer, Obey, Order, WorkerInfo, deaf
from palermo.entries import Entries
from palermo.errors import BrokerError, UrlInvalid
from palermo.events import EVENTS_AGE, EVENTS_BYTES, Events
from palermo.findings import Finding
from palermo.journal import Journal
from palermo.plugins import installed
from palermo.posting import Posting
from palermo.tenants import Tenants
from palermo.timetable import Timetable
from palermo.uniqueness import Keys


@dataclass(frozen=True, kw_only=True)  # no slots: see `handed` in brokers/rabbitmq/slot.py
class Delivery:
    """A message handed to one slot of one worker, not yet settled."""

    message: Message
    #: The slot it was handed to, from 1.
    slot: int
    #: What the broker needs to settle it; nobody else's business.
    token: Any = None
    #: Whether it was handed out before. Never proof that it ran: a give-back counts too.
    redelivered: bool = False
    #: Whether someone cancelled the job while it waited: it is not to be run.
    cancelled: bool = False
    #: Who did, as far as that was said.
    cancelled_by: str = ""
    #: The ids of the workers that died while they ran it, as far as the broker's record of starts knows.
    deaths: tuple[str, ...] = ()
    #: The id of a worker that lives and runs a job of this id, or that knows how it ended; "" if none does.
    running_at: str = ""
    #: The id of the job that has the key which this one needs: it is not to be run. "" if it may be.
    duplicate_of: str = ""
    #: What was said about the key when it was admitted; nobody else's business.
    grant: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """One queue, as a listing shows it."""

    name: str
    #: Jobs that wait, those of its tenants among them.
    pending: int
    #: Jobs that a worker holds.
    in_progress: int
    #: Workers that serve it.
    workers: int
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some messages of a queue, in queue order (oldest first) unless asked for newest first."""

    messages: tuple[Message, ...]
    #: How many messages the queue holds that wait.
    total: int
    #: The ids among them that are cancelled: whoever takes them drops them.
    cancelled: frozenset[str] = frozenset()
    #: How many more the queue holds than could be looked at, where a log of it is shown; below 0 if it holds fewer.
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the message where it is."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Take the message out of the queue."""


@dataclass(frozen=True, slots=True)
class Move:
    """Publish this message to its queue, and once that is confirmed take the old one out.

    Not where another job has the key that it needs: then the old one stays, and `refused` is called.
    """

    message: Message
    refused: Callable[[], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave this message and all behind it where they are, and end the sweep."""


Verdict = Keep | Remove | Move | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has done so far; `total` is how many messages it will look at."""

    total: int
    seen: int = 0
    removed: int = 0
    moved: int = 0
    #: As that of a Page.
    unseen: int = 0


#: Is shown a delivery, and says whether it takes it.
Take = Callable[[Delivery], bool]


class Express(Protocol):
    """The quick way of plain jobs, for a broker that can hand over a job in the turn of the loop in which it comes.

    Plain is a job that was never handed out before, is not cancelled, is due, and needs neither key nor permit.
    """

    def offer_to(self, slot: int, take: Take) -> None:
        """Show plain jobs for this slot to `take` first, while it waits in `receive`; for as long as the claim lasts.

        If it takes one, `receive` goes on waiting until that is settled, by `acknowledge` or by `settle`.
        """

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle one that was taken with Ack(), at once. Raises what `settle` raises."""

    def next(self, slot: int) -> None:
        """Whatever was taken for this slot is settled: show it the next job at once, if one is held for it."""


class Consumer(Protocol):
    """One worker's claim on jobs: at most one unsettled delivery per slot, and what its prefetch lets it hold."""

    @property
    def express(self) -> Express | None:
        """The quick way of plain jobs, if it has one."""

    async def receive(self, slot: int) -> Delivery:
        """The next job for this slot, by the selection's priority; waits as long as none is there.

        Cancelling the call gives back whatever was on its way. Raises BrokerUnavailable when the session is lost.
        """

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Do what the settlement says, so that at no instant is the job nowhere.

        Returns once a Fail or Retry is stored and confirmed. Raises DeliveryLost if the job went back to its queue
        meanwhile, and BrokerUnavailable if the session is lost; in both cases nothing was taken away.
        """

    async def admit(self, delivery: Delivery) -> Delivery | None:
        """Ask whether a job that needs a key may be started now: the delivery that is to be run and settled.

        It may have other arguments than the one that came. With `duplicate_of` it is not to be run.
        None if the delivery was settled here, since the job has ended or another worker has it. A delivery
        that needs no key, or is cancelled, is returned as it is. Raises what `settle` raises.
        """

    async def permit(self, delivery: Delivery) -> float | None:
        """Ask whether a job with a limit or a rate may run now: after how many seconds, which are few.

        None if the delivery was settled here: the job is put aside, and comes again when it may run. To be asked
        after `admit`; what it was given ends with `settle`. Raises what `settle` raises.
        """

    async def park(self, delivery: Delivery) -> None:
        """Let the slot receive again while this delivery stays unsettled; `settle` ends it as any other."""

    async def another(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        """The next job of the queue that this unsettled delivery came from, to be run together with it.

        It has the same wire name, may run now and was not handed out before; if the next is another, it stays where it
        is and None is returned at once. Where none is there it is waited for, so many seconds. Each is settled for
        itself.
        """

    async def waiting(self) -> Collection[str]:
        """Queues that this claim serves now and in which jobs wait: at least one, if there is any.

        For a worker that gets nothing, and asks whether it is deaf. A queue that may rightly keep its
        jobs from an idle slot is left out.
        """

    async def rest(self, slot: int) -> None:
        """Take nothing for this slot until it asks again; what was on its way to it goes back."""

    async def close(self) -> None:
        """Stop taking jobs; what is unsettled goes back to its queue. May be called again."""


class Broker(Posting, Timetable, Entries, Protocol):
    """Where jobs wait. See the module's first lines for its life."""

    #: What is written down of jobs, workers and operators.
    journal: Journal
    #: What happened, told to all who subscribe to it.
    events: Events
    #: Who decides about the keys of unique jobs.
    keys: Keys
    #: Whose jobs wait in queues that several share.
    tenants: Tenants

    async def limits(self) -> list[LimitInfo]:
        """The keys of jobs with a limit or a rate of which something is known now, by name."""

    async def publish(self, message: Message) -> None:
        """Store the message in the queue it names, making the queue if need be; returns once it is stored.

        One whose `run_at` is to come is not handed out before: see palermo.timetable.
        Raises BrokerUnavailable, BrokerRefused or PublishRefused; after any of them the
        message may be stored or not, and publishing it again is safe but may double it.
        """

    async def publish_many(self, messages: Iterable[Message], sent: Callable[[], None] | None = None) -> int:
        """The same for many, with their confirms overlapping; returns how many, once all are stored.

        A broker may call `sent` when all are on their way: what is published from then on is stored behind them.
        """

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        obey: Obey = deaf,
        prefetch: Prefetch = ONE,
    ) -> Consumer:
        """Begin to take jobs for this many slots, numbered from 1, and show this worker to others.

        `tag` is `pid:<pid>@<host>`; a slot's own is that and `/worker-<n>`. `report` is asked whenever someone lists
        workers, and must be quick; `obey` does what others `command`. Paused queues are left alone. `prefetch` is how
        many jobs a slot may hold at most.
        """

    async def queues(self) -> list[QueueInfo]:
        """All queues that are known, by name; `failed` among them once it exists."""

    async def workers(self) -> list[WorkerInfo]:
        """All workers that are alive, by id."""

    async def command(self, order: Order, *, timeout: float = 5.0) -> list[Answer]:
        """Have workers do something; what those answered who did, by id, within so many seconds.

        Returns as soon as all that are meant have answered. Whoever did not answer in time may still obey.
        """

    async def pause(self, queue: str, *, by: str = "") -> None:
        """Have no worker take jobs from the queue until `resume`, whatever is restarted; returns once that is stored.

        `by` says who did it. Running jobs go on; the queue need not exist.
        """

    async def resume(self, queue: str, *, by: str = "") -> None:
        """End a pause. Does nothing to a queue that is not paused."""

    async def cancel(self, ids: Iterable[str], *, by: str = "") -> None:
        """Mark these jobs, so that whoever takes one that was enqueued in this second or before drops it.

        Who holds one is told by an order to `cancel` it, which nobody waits for.
        Returns once that is stored. A mark is forgotten once its job is dropped or has run, when
        `sweep` moves it out of a queue of failed jobs, and by `restore`. Of marks for jobs that never
        come the newest 100,000 are kept.
        """

    async def restore(self, ids: Iterable[str]) -> None:
        """Take such marks back."""

    async def browse(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Page:
        """Some of the messages that wait, leaving order and counts as they were.

        Raises NotFound for a queue that does not exist, NotBrowsable where looking would harm.
        """

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], Verdict],
        *,
        progress: Callable[[Swept], None] | None = None,
        only_look: bool = False,
        id: str = "",
    ) -> Swept:
        """Ask `decide` about every message that waits at the start, oldest first, and do what it says.

        What is kept stays in its order. Bounded memory; interrupted at any instant it loses
        nothing, and at most the moves of the last moment are done twice when run again.
        `only_look` promises that it keeps all: then a broker may show what it knows of a queue of failed
        jobs that looking would harm, and, where `id` is given, leave out what has another id.
        Raises NotFound for a queue that does not exist.
        """

    async def purge(self, queue: str) -> int:
        """Remove all messages that wait; returns how many. Raises NotFound."""

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[Swept], None] | None = None) -> int:
        """Make the queue one of another type, one of MIGRATABLE, with all that is in it; how many jobs moved.

        Interrupted at any instant it loses nothing, and run again it goes on. Raises NotFound,
        and BrokerRefused from a broker whose queues have no types.
        """

    async def delete(self, queue: str) -> int:
        """Remove the queue and all in it that waits; returns how many. Raises NotFound."""

    async def diagnose(self) -> list[Finding]:
        """What may be wrong with this broker for Palermo, tried out where looking does not tell.

        Leaves all as it was: what it makes it removes. What goes wrong is a finding, and nothing is raised.
        """

    async def lost(self) -> BrokerError:
        """Wait until the session is lost, however long that takes; returns why. Never returns after close."""

    async def close(self) -> None:
        """End the session. May be called again."""

    @property
    def blocked(self) -> bool:
        """Whether the broker has said that it stores nothing for now: it is not silent, only to be waited for."""

    def describe(self) -> str:
        """What this session is connected to, for people; never with a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How to open a broker: what the settings say, in the adapter's terms."""

    address: Address
    exchange: str = DEFAULT_EXCHANGE
    #: What queues that are not there yet are made as, where the broker has several types: "classic" or "quorum".
    queue_type: str = CLASSIC
    #: The queues, among those, that get priorities.
    prioritized: frozenset[str] = frozenset()
    takes: bool = False  #: jobs, so that all that needs is opened at once
    tenant_order: str = TURN  #: see palermo.core.shares
    #: Seconds that opening, and publishing one message, may take.
    timeout: float = 5.0
    #: The most that the journal may take, in bytes, and for how many seconds it is kept.
    journal_bytes: int = JOURNAL_BYTES
    journal_age: float = JOURNAL_AGE
    #: What the names begin with by which events are published and groups subscribe; the exchange's name if empty.
    events_prefix: str = ""
    #: Whether events are kept, for so many seconds in so many bytes; if not, one that nobody subscribes to is refused.
    keep_events: bool = True
    events_bytes: int = EVENTS_BYTES
    events_age: float = EVENTS_AGE
    name: str = "client"  #: what the session is for, as far as the broker can show it

    @property
    def prefix(self) -> str:
        """That of the names of exchanges and queues that carry events."""
        return self.events_prefix or self.exchange


def opener(address: Address) -> Callable[[Session], Any]:
    """What opens a session: entry point `palermo.brokers` of the scheme. Raises UrlInvalid where nobody serves that."""
    found = {entry.name: entry for entry in installed("palermo.brokers")}
    if address.scheme not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UrlInvalid(f"no broker serves {address.scheme}:// (in {address}). Installed: {known}.")
    loaded: Callable[[Session], Any] = found[address.scheme].load()
    return loaded


async def open_broker(session: Session) -> Broker:
    """A new session with a broker. Raises UrlInvalid, BrokerUnavailable, BrokerRefused, StoreInvalid."""
    opened: Broker = await opener(session.address)(session)
    return opened
