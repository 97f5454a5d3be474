"""The contract that every broker adapter fulfils. tests/contract/broker_contract.py checks it.

A Broker is one session with the store of the jobs. It belongs to one event loop of one process, and never reconnects:
once it is lost, every call raises BrokerUnavailable, and its owner (the client, the worker) opens another.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from palermo.errors import BodyTooLarge, BrokerError, LeaderUnavailable, PalermoError, UrlInvalid


class Delivery(Struct, frozen=True, kw_only=True):
    """A message delivered to one slot of one worker, not yet settled."""

    message: Message
    #: The slot that it was delivered to, from 1.
    slot: int
    #: The broker's own value for settling it; no other code reads it.
    token: Any = None
    #: Whether it was delivered before. That doesn't prove that it ran, because a requeue also sets it.
    redelivered: bool = False
    #: Whether the job was cancelled while it waited, so that it must not run.
    cancelled: bool = False
    #: The user who cancelled it, if known.
    cancelled_by: str = ""
    #: Ids of the workers whose deaths while running it the broker has recorded.
    deaths: tuple[str, ...] = ()
    #: Id of a live worker that runs a job with this id or knows its outcome; "" if no worker does.
    running_at: str = ""
    #: Id of the job that holds this one's unique key; if not "", this one must not run.
    duplicate_of: str = ""
    #: The answer about its unique key; only palermo.contract.admission reads it.
    grant: Any = None


class QueueInfo(Struct, frozen=True, kw_only=True):
    """One queue, as a listing shows it."""

    name: str
    #: Waiting jobs, including those of tenants.
    pending: int
    #: Jobs that a worker holds.
    in_progress: int
    #: Number of workers that serve it and answer.
    workers: int
    #: Whether no worker takes jobs from it, because it or all queues are paused.
    paused: bool = False
    #: Number of sessions that take jobs from it or read it. They may hold jobs that aren't counted as `pending`.
    consumers: int = 0


class Overview(Struct, frozen=True, kw_only=True):
    """All queues and workers at one time."""

    #: Same as `Broker.queues` and `Broker.workers`.
    queues: list[QueueInfo]
    workers: WorkerList
    #: Whether all queues are paused.
    all_paused: bool
    #: Why the broker stores nothing now, if so. Workers may then be unable to answer.
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
        """Build the overview from the number of waiting jobs by queue.

        A paused queue is listed even if it doesn't exist. `selections` has each selection of the answering workers
        once, with the number of workers, which is faster with many workers.
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
    """A page of a queue's messages, oldest first unless the newest were requested."""

    messages: tuple[Message, ...]
    #: Number of messages that wait in the queue.
    total: int
    #: The ids of its cancelled jobs. A worker that takes one of them drops it.
    cancelled: frozenset[str] = frozenset()
    #: Only if the page comes from a log: how many more messages the queue has than the log, negative for fewer.
    unseen: int = 0


#: Called when a publish has ended, with None if the message is stored, otherwise the error.
OnPublished = Callable[[PalermoError | None], None]

#: Receives a delivery, and returns whether it accepts it.
TakeDelivery = Callable[[Delivery], bool]


class Consumer(Protocol):
    """One worker's consumer.

    It has at most one unsettled delivery per slot, and holds up to `prefetch` jobs for each.
    """

    async def receive(self, slot: int, take: TakeDelivery | None = None) -> Delivery:
        """The next job for this slot, by the selection's priority; waits for one.

        While it waits, it may offer plain jobs to `take` as soon as they arrive. A plain job is due, and was neither
        delivered before nor cancelled; it has no key and no limit. If `take` accepts one, the call keeps waiting, and
        offers the next after the accepted one is settled. If the call is cancelled, a job on its way is requeued.
        Raises BrokerUnavailable when the session is lost.
        """

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle a plain job with Ack(), without waiting. Raises the same as `settle`."""

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Settle the delivery. At every moment the job is stored somewhere.

        Returns once a Fail or Reschedule is stored and confirmed. Raises DeliveryLost if the job was requeued in the
        meantime, and BrokerUnavailable if the session is lost; in both cases nothing was removed.
        """

    async def save(self, delivery: Delivery, saved: str) -> None:
        """Store a running job's saved data, for its next delivery if this worker dies.

        Does nothing for a settled delivery. Raises BrokerError.
        """

    async def admit(self, delivery: Delivery, *, copy: bool = False) -> Delivery | None:
        """Ask whether a job with a unique key may start now.

        Returns the delivery to run and settle instead of this one. It may have other arguments, and must not run if it
        has `duplicate_of`. `copy` says that another worker runs the job from another message. Returns None if the
        delivery was settled here, because the job has ended or another worker runs it. Returns a cancelled delivery, or
        one without a key, unchanged. Raises the same as `settle`.
        """

    async def permit(self, delivery: Delivery) -> float | None:
        """Ask whether a job with a limit or a rate may run now; returns the seconds to wait before its run.

        The wait is short. Returns None if the delivery was settled here: the job is postponed, and delivered again when
        it may run. Call it after `admit`; `settle` ends the permit. Raises the same as `settle`.
        """

    async def free_slot(self, delivery: Delivery) -> None:
        """Let the slot receive again while this delivery stays unsettled; `settle` still ends it."""

    async def next_for_batch(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        """The next job of this unsettled delivery's queue, to run together with it in a batch; None if there is none.

        The returned job has the same wire name, may run now and was not delivered before. If the queue's next job
        doesn't qualify, it remains in the queue, and None is returned immediately. If the queue is empty, waits up to
        `wait` seconds. Each job of the batch is settled separately.
        """

    async def queues_with_jobs(self) -> Collection[str]:
        """Some of the served queues with waiting jobs; empty only if there are none.

        A worker that receives nothing uses this to detect a stall. Leaves out queues that may legitimately keep their
        jobs from an idle slot.
        """

    async def pause_slot(self, slot: int) -> None:
        """Take nothing for this slot until it calls `receive` again; a job on its way to the slot is requeued."""

    async def close(self) -> None:
        """Stop taking jobs; unsettled jobs go back to their queues. May be called again."""


#: Maximum body size, in bytes, of a job that is enqueued with a key, debounced or throttled.
MAX_KEYED_BODY = 4 * 1024 * 1024


def check_bodies(claims: Iterable[KeyRequest]) -> None:
    """Raise BodyTooLarge if the body of one of these jobs is too large for a job with a key."""
    for claim in claims:
        if len(claim.message.body) > MAX_KEYED_BODY:
            raise BodyTooLarge(
                f"job {claim.message.id} has a body of {len(claim.message.body):,} bytes; a job with a key can have"
                f" {MAX_KEYED_BODY:,}. Store the data elsewhere and pass a reference to it."
            )


class OrphanedKey(Struct, frozen=True, kw_only=True):
    """A key whose holder is neither in its queue nor with a worker."""

    key: str
    id: str
    queue: str
    #: When it took the key, in Unix seconds.
    since: float


class KeyPage(Struct, frozen=True, kw_only=True):
    """A page of the keys of unique jobs, and their total number."""

    keys: tuple[Key, ...]
    total: int


class UniqueKeys(Protocol):
    """The part of a broker that decides about the keys of unique jobs, `Broker.keys`.

    One place decides about all requests for a key: the leader, or the transaction that stores the job. So the requests
    have an order. The rules are in palermo/core/unique_rules.py. A worker runs a job with a key only after
    Consumer.admit. All methods raise BrokerUnavailable.
    """

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        """Enqueue these jobs, each if its key is free; returns an answer for each.

        A job and its key are stored together. Repeating a call returns the same answers and changes nothing. Raises
        BodyTooLarge for a body above MAX_KEYED_BODY.
        """

    async def why_silent(self) -> LeaderUnavailable | None:
        """The reason why requests about keys get no answer; None if the leader answers, or the broker has no leader."""

    async def known(self) -> list[Key]:
        """All keys with a present, next or remembered job, by name."""

    async def page(self, text: str, *, offset: int, limit: int) -> KeyPage:
        """A page of these keys: those with this text in their name, their job's name or a job's id."""

    async def find(self, name: str) -> Key | None:
        """The key with this name; None if nothing is known about it."""

    async def free(self, names: Iterable[str]) -> list[str]:
        """Free these keys, even while their holders run, and publish the jobs that were to run next.

        Returns the freed keys. A waiting job takes its key again when it starts, if the key is free by then.
        """

    async def orphaned(self) -> list[OrphanedKey]:
        """Keys whose holders are nowhere to be found. The search changes nothing, and takes a second or more."""

    async def announce(self, jobs: Iterable[str], unique: Iterable[UniqueJob]) -> None:
        """Announce permanently which of these jobs are unique. Replaces earlier announcements of these jobs."""

    async def announced(self) -> dict[str, UniqueJob]:
        """The announced unique jobs, by name. Raises BrokerRefused for a user without the permission."""


class Tenant(Plain, frozen=True, kw_only=True, array_like=True):
    """One tenant of a queue, as a listing shows it."""

    name: str
    #: Its waiting jobs that are not being delivered yet.
    pending: int
    #: Its share of the queue; the default is 1.
    share: float = 1.0


class Tenants(Protocol):
    """`Broker.tenants`: what a broker does for queues whose jobs belong to several tenants.

    A job with a tenant waits separately from the others. Workers get jobs of all tenants with waiting jobs, in turn
    or at random, by their shares; see palermo.core.fair_scheduling. Jobs without a tenant are taken first. On
    RabbitMQ the leader dispatches the jobs, so they wait while no worker leads.
    """

    async def of(self, queue: str) -> list[Tenant]:
        """The tenants with jobs waiting in the queue, those with most jobs first. Empty for a queue without tenants."""

    async def totals(self) -> Mapping[str, int]:
        """Number of waiting jobs of tenants, by queue; queues without such jobs may be left out."""

    async def clear(self, queue: str, tenant: str) -> int:
        """Remove the waiting jobs of this tenant from the queue; returns their number.

        Raises NotFound if it has none.
        """


class Finding(Struct, frozen=True, kw_only=True):
    """One finding of `palermo doctor`."""

    #: The subject of the check, in up to three words.
    check: str
    #: `ok`, `warning` (may be intended), or `problem` (jobs are not stored, not run, or lost).
    level: str
    text: str
    #: The remedy, or "".
    advice: str = ""
    #: All affected queues or jobs, worst first. The text names only the first few.
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
    """Ignore the count."""


class Broker(ScheduledJobs, RecurringEntries, FindsJobs, Protocol):
    """One session with the store of the jobs. The module's docstring describes its life."""

    #: The log of the actions of jobs, workers and operators.
    journal: Journal
    #: Events, and the groups that subscribe to them.
    events: Events
    #: The keys of unique jobs, and the decisions about them.
    keys: UniqueKeys
    #: The tenants of queues that several tenants share.
    tenants: Tenants
    workflows: Workflows

    async def limits(self) -> list[LimitInfo]:
        """The known keys of jobs with a limit or a rate, by name."""

    async def publish(self, message: Message) -> None:
        """Store the message in its queue, declaring the queue if it is missing; returns once it is stored.

        It is not delivered before its `run_at`: see palermo.contract.scheduled.
        Raises BrokerUnavailable, BrokerRefused or PublishRefused. After any of them the message may be stored or
        not; publishing it again is safe, but may duplicate it.
        """

    def try_publish(self, message: Message, ended: OnPublished) -> bool:
        """Start `publish` without a task, if it needs no preparation and no waiting. Any thread may call it.

        Returns False if nothing was started; then the caller must use `publish`. Otherwise `ended` is called with the
        outcome, possibly before this returns, in the session's thread or the caller's. It must not raise. In another
        thread than the session's, an error is not reported before this returns. The call may store the message itself,
        in at most a quarter of the session's timeout. After an error the caller may use `publish`, which may recover
        from it.
        """

    async def publish_many(
        self,
        messages: Iterable[Message],
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        """Like `publish`, for many messages, with overlapping confirms. Returns their number once all are stored.

        A broker calls `stored` with the number of stored messages so far, and once more before it returns or raises.
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
        """Start taking jobs for this many slots, numbered from 1, and announce this worker to others.

        `tag` is `pid:<pid>@<host>`; a slot's own tag adds `/worker-<n>`. `report` is called whenever workers are
        listed, and must be quick. `on_command` executes commands to this worker. Paused queues are not consumed.
        `prefetch` is the number of jobs that a slot holds: the running one, and those that wait for it.
        """

    async def queues(self) -> list[QueueInfo]:
        """All known queues, by name, including `failed` once it exists."""

    async def workers(self) -> WorkerList:
        """All living workers, by id. `complete` is False if the jobs of some are unknown.

        A worker's `answers` is False if it didn't answer within a second, or has been silent for some seconds.
        """

    async def overview(self) -> Overview:
        """`queues`, `workers` and `all_paused` in one request, at little more than a third of the cost."""

    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]:
        """Send a command to workers; returns the replies, by worker id, after all answers or `timeout` seconds.

        A worker that doesn't answer in time may still execute the command.
        """

    async def pause(self, queue: str, *, by: str = "") -> None:
        """Pause the queue for all workers until `resume`, across restarts; returns once that is stored.

        `by` is the user. Running jobs continue; the queue need not exist. EVERY_QUEUE stands for all queues,
        including those of workers that start later and queues created later.
        """

    async def resume(self, queue: str, *, by: str = "") -> None:
        """End a pause. Does nothing to a queue that is not paused.

        After a pause of all queues, queues that were paused by name are still paused.
        """

    async def all_paused(self) -> bool:
        """Whether all queues are paused."""

    async def cancel(self, ids: Iterable[str], *, by: str = "", created_at: int | None = None) -> Sequence[str]:
        """Mark jobs as cancelled. Workers drop marked jobs that were enqueued in this second or before.

        `created_at` includes jobs enqueued in that second, by a clock that is ahead. Workers that hold one of the jobs
        get the command `cancel`, without an awaited reply. A cancelled workflow releases only clean-up steps from now
        on, and the jobs of its steps are cancelled. Returns the ids of these jobs once all marks are stored. A mark is
        removed when its job is dropped, has run, or is requeued from a failed queue, and by `restore`. The newest
        100,000 marks are kept.
        """

    async def restore(self, ids: Iterable[str]) -> None:
        """Remove the cancel marks of these jobs."""

    async def browse(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, max_body: int = MAX_BODY
    ) -> Page:
        """A page of waiting messages. Doesn't change their order or delivery counts.

        On RabbitMQ the order may change while workers take from the queue, see docs/guides/pages.md. Only the first
        `max_body` + 1 bytes of a longer body are kept, to bound memory. Raises NotFound for a missing queue,
        NotBrowsable if reading would change the queue or is not permitted.
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
        """Call `decide` for every message that waits at the start, oldest first, and carry out its decision.

        Kept messages stay in order, and memory is bounded. An interruption loses no job; the next sweep repeats at most
        the last moves. `only_look` promises that `decide` keeps all messages, so that the broker may use a log of the
        queue instead of reading the queue. `ids` promises that `decide` keeps messages with other ids, so that the
        broker may skip those. With `most`, it may stop after that many messages. Raises NotFound for a missing queue.
        """

    async def purge(self, queue: str) -> int:
        """Remove all waiting messages; returns their number. Raises NotFound."""

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[SweepProgress], None] | None = None) -> int:
        """Change the queue's type to `kind`, one of MIGRATABLE; returns the number of moved jobs.

        An interruption loses no job, and the next call continues. Raises NotFound, and BrokerRefused from a broker
        without queue types.
        """

    async def delete(self, queue: str) -> int:
        """Delete the queue and its waiting messages; returns their number. Raises NotFound."""

    async def diagnose(self) -> list[Finding]:
        """Check this broker for problems, by experiment where reading is not enough.

        Removes everything that it creates, and reports errors as findings.
        """

    async def lost(self) -> BrokerError:
        """Wait until the session is lost; returns the reason. Never returns after `close`."""

    @property
    def is_lost(self) -> bool:
        """Whether the session is known to be lost and unusable."""

    async def close(self) -> None:
        """End the session. May be called again."""

    @property
    def trouble(self) -> Trouble | None:
        """The problem that the broker has reported to this session, which still works: callers may wait."""

    async def find_trouble(self) -> Trouble | None:
        """Find the broker's current problem, or a missing permission of this user. Leaves nothing behind.

        Raises BrokerUnavailable.
        """

    def describe(self) -> str:
        """The connected server or file, as readable text without a password."""

    def after_failure(self) -> "SessionParameters":
        """The parameters for another session after this one failed. If there are several hosts, it tries the next one
        first.

        A host that is cut off from the others may accept every session, and then fail it.
        """


class SessionParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a broker session: the settings, in the adapter's terms."""

    address: Address
    exchange: str = DEFAULT_EXCHANGE
    #: The type of new queues, "classic" or "quorum", if the broker has several types.
    queue_type: str = CLASSIC
    #: The queues, among the declared ones, that get priorities.
    prioritized: frozenset[str] = frozenset()
    takes: bool = False  #: whether the session takes jobs, and so opens everything for that at its start
    tenant_order: str = TURN  #: see palermo.core.fair_scheduling
    failed_per_queue: bool = False  #: whether each queue has its own failed queue, as in palermo.core.topology
    #: The time limit for opening the session, and for publishing one message, in seconds.
    timeout: float = 5.0
    #: The journal's size limit in bytes, and for how many seconds its records are kept.
    journal_bytes: int = JOURNAL_BYTES
    journal_age: float = JOURNAL_AGE
    #: The prefix of exchanges and queues for events; the exchange's name if empty.
    events_prefix: str = ""
    #: Whether events are kept, by age and size. If not, an event without subscribers is refused.
    keep_events: bool = True
    events_bytes: int = EVENTS_BYTES
    events_age: float = EVENTS_AGE
    name: str = "client"  #: the purpose of the session, if the broker can show it
    #: Whether to warn of settings that don't work as expected. A worker's jobs leave that to its parent.
    warns: bool = True
    #: Whether a broker that is one file may create it. A read-only command must not: the path may be mistyped.
    creates: bool = True
    #: Unfinished work of the previous session, in the broker's own terms, set by `after_failure`.
    unfinished: Any = None

    @property
    def prefix(self) -> str:
        """The prefix of exchanges and queues for events."""
        return self.events_prefix or self.exchange


def opener(address: Address) -> Callable[[SessionParameters], Any]:
    """The function that opens a session for the URL's scheme, from the entry point `palermo.brokers`.

    Raises UrlInvalid.
    """
    group, scheme = "palermo.brokers", address.scheme
    found = own(group).get(scheme) or installed(group).get(scheme)
    if found is None:
        known = ", ".join(sorted(installed(group)))
        raise UrlInvalid(f"no installed broker supports {scheme}:// (in {address}). The supported schemes are {known}.")
    loaded: Callable[[SessionParameters], Any] = found.load()
    return loaded


async def open_broker(session: SessionParameters) -> Broker:
    """Open a new session with a broker. Raises UrlInvalid, BrokerUnavailable, BrokerRefused, StoreInvalid."""
    opened: Broker = await opener(session.address)(session)
    return opened
