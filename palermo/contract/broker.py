"""The contract of a broker: what every adapter provides to the runtime. tests/contract/broker_contract.py checks it.

A Broker is one session with the place where jobs wait. It belongs to one event loop of one process, and it never
reconnects: once it is lost, every call raises BrokerUnavailable, and its owner (the client, the worker) opens another.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from palermo.contract.events import EVENTS_AGE, EVENTS_BYTES, Events
from palermo.contract.finding import FindsJobs
from palermo.contract.journal import Journal
from palermo.contract.plugins import installed, own
from palermo.contract.recurring_entries import RecurringEntries
from palermo.contract.scheduled import ScheduledJobs
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.contract.trouble import Trouble
from palermo.contract.unique_jobs import UniqueJob
from palermo.contract.worker_info import CommandReply, OnCommand, WorkerCommand, WorkerInfo, WorkerList, ignore_command
from palermo.contract.workflows import Workflows
from palermo.core.address import Address
from palermo.core.fair_scheduling import TURN
from palermo.core.journal_records import JOURNAL_AGE, JOURNAL_BYTES
from palermo.core.lifecycle import Settlement
from palermo.core.limits import LimitInfo
from palermo.core.message import MAX_BODY, Message
from palermo.core.plain import Plain
from palermo.core.queue_selection import PausedQueues, QueueSelection
from palermo.core.topology import CLASSIC, DEFAULT_EXCHANGE
from palermo.core.unique_keys import Key, KeyRequest
from palermo.core.unique_rules import EnqueueAnswer
from palermo.errors import BrokerError, LeaderUnavailable, PalermoError, UrlInvalid


class Delivery(Struct, frozen=True, kw_only=True):
    """A message handed to one slot of one worker, not yet settled."""

    message: Message
    #: The slot it was handed to, from 1.
    slot: int
    #: The broker's own value for settling it; no other code reads it.
    token: Any = None
    #: Whether it was handed out before. Never proof that it ran: a give-back counts too.
    redelivered: bool = False
    #: Whether someone cancelled the job while it waited: then it must not run.
    cancelled: bool = False
    #: Who cancelled it, if that is known.
    cancelled_by: str = ""
    #: The ids of the workers that died while they ran it, as far as the broker's record of starts knows.
    deaths: tuple[str, ...] = ()
    #: The id of a live worker that runs a job of this id, or that knows how it ended; "" if there is none.
    running_at: str = ""
    #: The id of the job that has the unique key which this one needs: then this one must not run. "" if it may.
    duplicate_of: str = ""
    #: The answer about the unique key when the job was admitted; for palermo.contract.admission alone.
    grant: Any = None


class QueueInfo(Struct, frozen=True, kw_only=True):
    """One queue, as a listing shows it."""

    name: str
    #: Jobs that wait, its tenants' jobs included.
    pending: int
    #: Jobs that a worker holds.
    in_progress: int
    #: Workers that serve it, without those that do not answer.
    workers: int
    #: Whether no worker takes jobs from it: it is paused itself, or all queues are.
    paused: bool = False
    #: Sessions that take its jobs or look into it now, where jobs that one of them holds are not `pending`.
    consumers: int = 0


class Overview(Struct, frozen=True, kw_only=True):
    """All queues and workers, as they were at one time."""

    #: As from `Broker.queues` and `Broker.workers`.
    queues: list[QueueInfo]
    workers: WorkerList
    #: Whether the pause of all queues holds.
    all_paused: bool
    #: Why the broker stores nothing now. Workers may be unable to answer then.
    trouble: Trouble | None = None

    @classmethod
    def of(
        cls,
        pending: Mapping[str, int],
        *,
        in_progress: Mapping[str, int],
        selections: Iterable[tuple[QueueSelection, int]],
        workers: WorkerList,
        paused: PausedQueues,
        consumers: Mapping[str, int] | None = None,
        trouble: Trouble | None = None,
    ) -> "Overview":
        """The overview of queues with so many waiting jobs; a paused queue is listed even if it does not exist.

        `selections` has what the workers serve that answer, and how many serve it: with many workers that is faster.
        """
        served = Counter[str]()
        for selection, count in selections:
            served.update(dict.fromkeys(selection.select(pending), count))
        queues = [
            QueueInfo(
                name=name,
                pending=pending.get(name, 0),
                in_progress=in_progress.get(name, 0),
                workers=served[name],
                paused=name in paused,
                consumers=(consumers or {}).get(name, 0),
            )
            for name in sorted({*pending, *paused.names})
        ]
        return cls(queues=queues, workers=workers, all_paused=paused.every, trouble=trouble)


class Page(Struct, frozen=True, kw_only=True):
    """Some messages of a queue, in queue order (oldest first) unless asked for newest first."""

    messages: tuple[Message, ...]
    #: How many messages wait in the queue.
    total: int
    #: The ids among them that are cancelled: the worker that takes one of them drops it.
    cancelled: frozenset[str] = frozenset()
    #: If the page comes from a log of the queue: how many more messages the queue holds than the log; below 0 if fewer.
    unseen: int = 0


#: Called when a publish has ended: with None if the message is stored, else with why it is not, or may not be.
OnPublished = Callable[[PalermoError | None], None]

#: Gets a delivery, and returns whether it takes it.
TakeDelivery = Callable[[Delivery], bool]


class Consumer(Protocol):
    """One worker's consumer: it has at most one unsettled delivery per slot, and holds what the prefetch allows."""

    async def receive(self, slot: int, take: TakeDelivery | None = None) -> Delivery:
        """The next job for this slot, by the selection's priority; waits until there is one.

        While it waits, it may offer a plain job to `take` in the turn of the loop in which the job comes. A plain job
        was never handed out before, is not cancelled, is due, and needs neither key nor permit. If `take` takes it,
        the call goes on waiting, and offers the next one once that job is settled.
        Cancelling the call gives back a job that was on its way. Raises BrokerUnavailable when the session is lost.
        """

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle a plain job with Ack(), at once. Raises what `settle` raises."""

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Do what the settlement says. The job is always stored somewhere.

        Returns once a Fail or Reschedule is stored and confirmed. Raises DeliveryLost if the job went back to its queue
        in the meantime, and BrokerUnavailable if the session is lost; in both cases nothing was taken away.
        """

    async def save(self, delivery: Delivery, saved: str) -> None:
        """Keep what a running job has saved: if this worker dies, the next delivery of the job has it in its message.

        Does nothing for a delivery that has been settled. Raises BrokerError.
        """

    async def admit(self, delivery: Delivery, *, copy: bool = False) -> Delivery | None:
        """Ask whether a job that needs a unique key may start now. Returns the delivery to run and to settle.

        `copy` says that another worker runs the job from another message. The returned delivery may have other
        arguments than the given one. If it has `duplicate_of`, it must not run. Returns None if the delivery was
        settled here, because the job has ended or another worker runs it. A delivery that needs no key, or is
        cancelled, is returned unchanged. Raises what `settle` raises.
        """

    async def permit(self, delivery: Delivery) -> float | None:
        """Ask whether a job with a limit or a rate may run now; returns after how many seconds, which are few.

        Returns None if the delivery was settled here: the job is put aside, and comes again when it may run. Call it
        after `admit`; `settle` ends the permit. Raises what `settle` raises.
        """

    async def free_slot(self, delivery: Delivery) -> None:
        """Let the slot receive again while this delivery stays unsettled; `settle` ends it like any other."""

    async def next_for_batch(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        """The next job of the queue that this unsettled delivery came from, to run together with it in a batch.

        It has the same wire name, may run now and was not handed out before. If the next job is another one, it stays
        where it is, and None is returned at once. If the queue is empty, the call waits so many seconds for a job. Each
        job of the batch is settled by itself.
        """

    async def queues_with_jobs(self) -> Collection[str]:
        """Queues that this consumer serves now and in which jobs wait: at least one of them, if there is any.

        A worker that receives nothing asks this, to learn whether it has stalled. A queue that may rightly keep its
        jobs from an idle slot is left out.
        """

    async def pause_slot(self, slot: int) -> None:
        """Take nothing for this slot until it calls `receive` again; a job on its way to the slot goes back."""

    async def close(self) -> None:
        """Stop taking jobs; unsettled jobs go back to their queues. May be called again."""


#: The largest body, in bytes, of a job that is enqueued with a key, debounced or throttled.
MAX_KEYED_BODY = 4 * 1024 * 1024


class OrphanedKey(Struct, frozen=True, kw_only=True):
    """A key whose holder is nowhere: neither in its queue nor with a worker."""

    key: str
    id: str
    queue: str
    #: When it took the key, in Unix seconds.
    since: float


class KeyPage(Struct, frozen=True, kw_only=True):
    """A page of the keys of unique jobs, and how many there are in all."""

    keys: tuple[Key, ...]
    total: int


class UniqueKeys(Protocol):
    """The part of a broker that decides about the keys of unique jobs, `Broker.keys`.

    One place decides about a key: the leader, or the transaction that stores the job. So of all that happens to a key
    at once, one thing is first. palermo/core/unique_rules.py has the rule. A worker runs a job with a key only after it
    was admitted: Consumer.admit. All methods raise BrokerUnavailable.
    """

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        """Store these jobs, each if its key is free; returns an answer for each. Job and key are stored together.

        Called again with the same claims, it answers the same and does nothing more. Raises PublishRefused for a body
        above MAX_KEYED_BODY.
        """

    async def why_silent(self) -> LeaderUnavailable | None:
        """Why a request about keys gets no answer; None if the leader answers, or this broker has none."""

    async def known(self) -> list[Key]:
        """All keys that jobs have, get or had, by name."""

    async def page(self, text: str, *, offset: int, limit: int) -> KeyPage:
        """A page of these keys: those with this text in their name, in their job's name, or in the id of a job."""

    async def find(self, name: str) -> Key | None:
        """The key with this name; None if no job has, gets or had it."""

    async def free(self, names: Iterable[str]) -> list[str]:
        """Take these keys from their holders, whatever those do, and publish the jobs that were to run next.

        Returns the keys that there were. A waiting job takes its key when it is started, if no other job has it then.
        """

    async def orphaned(self) -> list[OrphanedKey]:
        """Keys whose holders are nowhere, as far as that can be seen without harm; looking takes a second or more."""

    async def announce(self, jobs: Iterable[str], unique: Iterable[UniqueJob]) -> None:
        """Say which of these jobs are unique, for good: this replaces what was announced of them before."""

    async def announced(self) -> dict[str, UniqueJob]:
        """The jobs that were announced as unique, by name. Raises BrokerRefused for a user who may not know."""


class Tenant(Plain, frozen=True, kw_only=True, array_like=True):
    """One tenant of a queue, as a listing shows it."""

    name: str
    #: Its jobs that wait and are not being handed to a worker yet.
    pending: int
    #: Its share of the queue, where others have 1.
    share: float = 1.0


class Tenants(Protocol):
    """The part of a broker for queues whose jobs belong to several tenants, `Broker.tenants`.

    A job that names a tenant waits apart from the others. A worker is given jobs of all tenants that have some, in
    turn or at random, by their shares: palermo.core.fair_scheduling says how. Jobs without a tenant are taken first.
    On RabbitMQ the leader deals the jobs out, so they wait while no worker leads.
    """

    async def of(self, queue: str) -> list[Tenant]:
        """The tenants that have jobs waiting in the queue, those with most first.

        With thousands of tenants the counts may be some seconds old. Empty for a queue that has none.
        """

    async def totals(self) -> Mapping[str, int]:
        """By queue, how many waiting jobs belong to tenants; queues without such jobs may be left out."""

    async def clear(self, queue: str, tenant: str) -> int:
        """Remove the jobs of this tenant that wait in the queue; returns how many. Raises NotFound if it has none."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that `palermo doctor` looked at, and the result."""

    #: What was looked at, in up to three words.
    check: str
    #: ok; warning, which may be as you want it; or problem, because of which jobs are not stored, not run, or lost.
    level: str
    text: str
    #: What to do about it; "" where there is nothing to do.
    advice: str = ""
    #: All queues or jobs that it is about, the worst first, of which the text names the first few.
    names: tuple[str, ...] = ()

    @classmethod
    def ok(cls, check: str, text: str, advice: str = "") -> "Finding":
        return cls(check=check, level="ok", text=text, advice=advice)

    @classmethod
    def warning(cls, check: str, text: str, advice: str) -> "Finding":
        return cls(check=check, level="warning", text=text, advice=advice)

    @classmethod
    def problem(cls, check: str, text: str, advice: str) -> "Finding":
        return cls(check=check, level="problem", text=text, advice=advice)


def ignore_count(count: int) -> None:
    """Do nothing with the count."""


class Broker(ScheduledJobs, RecurringEntries, FindsJobs, Protocol):
    """One session with the place where jobs wait. See the module's docstring for its life."""

    #: The log of what jobs, workers and operators did.
    journal: Journal
    #: Events, and the groups that subscribe to them.
    events: Events
    #: The keys of unique jobs, and the decisions about them.
    keys: UniqueKeys
    #: The tenants of queues that several tenants share.
    tenants: Tenants
    workflows: Workflows

    async def limits(self) -> list[LimitInfo]:
        """The keys of jobs with a limit or a rate about which something is known now, by name."""

    async def publish(self, message: Message) -> None:
        """Store the message in the queue it names, declaring the queue if it is missing; returns once it is stored.

        A message whose `run_at` is in the future is not handed out before then: see palermo.contract.scheduled.
        Raises BrokerUnavailable, BrokerRefused or PublishRefused. After any of them the message
        may be stored or not; publishing it again is safe, but may double it.
        """

    def try_publish(self, message: Message, ended: OnPublished) -> bool:
        """`publish` without a task, if nothing must be made or waited for first. Any thread may call it.

        Returns False if nothing was begun: then the caller must use `publish`. Else `ended` is called with the outcome,
        in the session's thread or before this returns, and must not raise. After an error the caller may use `publish`
        too, which may do more about the error than raise it. Outside of the session's thread no error comes before this
        returns; the call may store the message itself, and then takes a quarter of the session's timeout at most.
        """

    async def publish_many(
        self,
        messages: Iterable[Message],
        sent: Callable[[], None] | None = None,
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        """`publish` for many messages, with overlapping confirms; returns how many, once all are stored.

        A broker may call `sent` when all are on their way: a message published from then on is stored behind them.
        It calls `stored` with the number that are stored so far, at the latest before it returns or raises.
        """

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        on_command: OnCommand = ignore_command,
        prefetch: int = 1,
    ) -> Consumer:
        """Begin to take jobs for this many slots, numbered from 1, and announce this worker to others.

        `tag` is `pid:<pid>@<host>`; a slot's own tag adds `/worker-<n>`. `report` is called whenever someone lists
        workers, and must be quick. `on_command` carries out what others `command`. Paused queues are left alone.
        `prefetch` is the number of jobs that a slot may hold: the running one, and those that wait for it to end.
        """

    async def queues(self) -> list[QueueInfo]:
        """All known queues, by name; `failed` is among them once it exists."""

    async def workers(self) -> WorkerList:
        """All workers that are alive, by id; `complete` is False if the jobs of some are not known.

        One that has not answered for a second, or for some seconds has shown no sign of life, has `answers` False.
        """

    async def overview(self) -> Overview:
        """`queues`, `workers` and `all_paused` in one question: to ask three times costs nearly three times as much."""

    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]:
        """Send a command to workers; returns the replies of those that carried it out within so many seconds, by id.

        Returns as soon as all addressed workers have answered. A worker that did not answer in time may still obey.
        """

    async def pause(self, queue: str, *, by: str = "") -> None:
        """Let no worker take jobs from the queue until `resume`, across restarts; returns once that is stored.

        `by` says who did it. Running jobs go on; the queue need not exist. EVERY_QUEUE stands for all queues, and holds
        for workers that start later and queues that are made later.
        """

    async def resume(self, queue: str, *, by: str = "") -> None:
        """End a pause. Does nothing to a queue that is not paused.

        After the pause of all queues, those that were paused by name stay so.
        """

    async def all_paused(self) -> bool:
        """Whether the pause of all queues holds."""

    async def cancel(self, ids: Iterable[str], *, by: str = "", created_at: int | None = None) -> Sequence[str]:
        """Mark jobs as cancelled: a worker that takes a marked job, enqueued in this second or before, drops it.

        With `created_at` the mark also holds for a job that was enqueued in that second, by a clock that is ahead.

        A worker that holds one of the jobs gets the command to `cancel` it; its reply is not waited for.
        A workflow releases no more steps, except those that clean up, and the jobs of its steps are cancelled.
        Returns the ids of these jobs once all marks are stored. A mark is forgotten once its job is dropped or has run,
        when `sweep` moves the job out of a queue of failed jobs, and by `restore`. Of the marks for jobs that
        never come, the newest 100,000 are kept.
        """

    async def restore(self, ids: Iterable[str]) -> None:
        """Take the cancel marks of these jobs back."""

    async def browse(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, max_body: int = MAX_BODY
    ) -> Page:
        """Some of the messages that wait; their delivery counts stay as they were.

        So does their order, except on RabbitMQ while workers take from the queue: see docs/guides/pages.md.

        Of a body of more than `max_body` bytes only the first `max_body` + 1 are kept, so that memory is bounded by
        what is shown.
        Raises NotFound for a queue that does not exist, NotBrowsable where looking would harm or is not permitted.
        """

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        *,
        progress: Callable[[SweepProgress], None] | None = None,
        only_look: bool = False,
        ids: Collection[str] = (),
        most: int | None = None,
    ) -> SweepProgress:
        """Ask `decide` about every message that waits at the start, oldest first, and do what it says.

        Messages that it keeps stay in their order. Memory is bounded. Interrupted at any instant, a sweep loses
        nothing, and at most the moves of the last moment are done twice when it is run again.
        `only_look` promises that `decide` keeps all: then a broker may show what it knows about a queue of failed
        jobs that looking would harm. `ids` promises that `decide` keeps all messages that have other ids, in a queue
        of failed jobs: then a broker need not ask about those. With `most` it need not look at more than so many.
        Raises NotFound for a queue that does not exist.
        """

    async def purge(self, queue: str) -> int:
        """Remove all messages that wait; returns how many. Raises NotFound."""

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[SweepProgress], None] | None = None) -> int:
        """Change the queue's type to `kind`, one of MIGRATABLE, and keep its messages; returns how many jobs moved.

        Interrupted at any instant it loses nothing, and when it is run again it goes on. Raises NotFound,
        and BrokerRefused from a broker whose queues have no types.
        """

    async def delete(self, queue: str) -> int:
        """Delete the queue and all messages that wait in it; returns how many. Raises NotFound."""

    async def diagnose(self) -> list[Finding]:
        """Find what may be wrong with this broker for Palermo, by trying things out where a look is not enough.

        Leaves everything as it was, and removes what it makes. Anything that goes wrong is a finding; raises nothing.
        """

    async def lost(self) -> BrokerError:
        """Wait until the session is lost, however long that takes; returns the reason. Never returns after close."""

    @property
    def is_lost(self) -> bool:
        """Whether the session is known to be lost: nothing can be done with it any more."""

    async def close(self) -> None:
        """End the session. May be called again."""

    @property
    def trouble(self) -> Trouble | None:
        """The trouble that the broker has told this session of: it is not dead, so callers wait if the trouble does."""

    async def find_trouble(self) -> Trouble | None:
        """Find the trouble that the broker is in now, or has with this user. Leaves nothing behind.

        Raises BrokerUnavailable.
        """

    def describe(self) -> str:
        """The server or file that this session is connected to, for people; never with a password."""

    def after_failure(self) -> "SessionParameters":
        """The parameters of the next session if this one failed: of several hosts, the next one is tried first.

        A host of which the others are cut off may accept every session, and fail it.
        """


#: How many messages a broker stores in one step of `publish_many`, and about how many bytes of bodies.
_STEP, _STEP_BYTES = 500, 8 * 1024 * 1024


def in_steps(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages as `publish_many` of a broker stores them: so many in one step that its size is bounded."""
    step: list[Message] = []
    size = 0
    for message in messages:
        step.append(message)
        size += len(message.body)
        if len(step) >= _STEP or size >= _STEP_BYTES:
            yield step
            step, size = [], 0
    if step:
        yield step


class SessionParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a broker session: the settings, in the adapter's terms."""

    address: Address
    exchange: str = DEFAULT_EXCHANGE
    #: The type of queues that are not there yet, if the broker has several types: "classic" or "quorum".
    queue_type: str = CLASSIC
    #: The queues, among those, that get priorities.
    prioritized: frozenset[str] = frozenset()
    takes: bool = False  #: whether the session takes jobs: then everything for that is opened at once
    tenant_order: str = TURN  #: see palermo.core.fair_scheduling
    failed_per_queue: bool = False  #: whether the failed jobs of each queue lie apart, as in palermo.core.topology
    #: The time limit for opening the session, and for publishing one message, in seconds.
    timeout: float = 5.0
    #: The journal's size limit in bytes, and for how many seconds its records are kept.
    journal_bytes: int = JOURNAL_BYTES
    journal_age: float = JOURNAL_AGE
    #: The prefix of the names of exchanges and queues that carry events; the exchange's name if empty.
    events_prefix: str = ""
    #: Whether events are kept, for so many seconds in so many bytes. If not, an event without subscribers is refused.
    keep_events: bool = True
    events_bytes: int = EVENTS_BYTES
    events_age: float = EVENTS_AGE
    name: str = "client"  #: what the session is for, if the broker can show it
    #: Whether the broker's code warns of settings that do not work as they seem to. A worker's parent does, so the
    #: processes of its jobs need not.
    warns: bool = True
    #: Whether a broker that is one file may create the file. What only looks must not: a mistyped path would be empty.
    creates: bool = True
    #: What the session before this one left unfinished, in the broker's own terms; set by `after_failure`.
    unfinished: Any = None

    @property
    def prefix(self) -> str:
        """The prefix of the names of exchanges and queues that carry events."""
        return self.events_prefix or self.exchange


def opener(address: Address) -> Callable[[SessionParameters], Any]:
    """The session opener of the URL's scheme, by entry point `palermo.brokers`. Raises UrlInvalid if there is none."""
    group, scheme = "palermo.brokers", address.scheme
    found = own(group).get(scheme) or installed(group).get(scheme)
    if found is None:
        known = ", ".join(sorted(installed(group)))
        raise UrlInvalid(f"no broker serves {scheme}:// (in {address}). Installed: {known}.")
    loaded: Callable[[SessionParameters], Any] = found.load()
    return loaded


async def open_broker(session: SessionParameters) -> Broker:
    """Open a new session with a broker. Raises UrlInvalid, BrokerUnavailable, BrokerRefused, StoreInvalid."""
    opened: Broker = await opener(session.address)(session)
    return opened
