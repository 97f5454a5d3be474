"""Keys of unique jobs: the lock that a message requests, the state of a key, and both as JSON values.

unique_rules.py decides about keys; docs/internals/decisions/unique-jobs.md has the reasons.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.message import MAX_SECONDS, Message
from palermo.core.plain import PlainWithMessages
from palermo.core.plain import message_from_plain as message_from_plain
from palermo.core.plain import message_to_plain as message_to_plain

#: The headers of a message that needs a key: its mode, the key, and the seconds of cooldown afterwards.
UNIQUE, UNIQUE_KEY, LINGER = "unique", "unique-key", "unique-linger"

#: The header of a throttled or debounced message: its key at the enqueue. It needs no key to run.
BURST_KEY = "burst-key"


class Mode(StrEnum):
    """The time for which a job holds its key."""

    START = "until_start"  #: until a worker starts it
    DONE = "until_done"  #: until it has ended, retries included
    WINDOW = "seconds"  #: for a number of seconds from its enqueue


class Phase(StrEnum):
    """Whether the holder of a key waits or runs."""

    WAITING = "waiting"
    RUNNING = "running"


class UniqueLock(Struct, frozen=True, kw_only=True):
    """The lock that a message asks for."""

    key: str
    mode: Mode
    #: The time for Mode.WINDOW.
    seconds: float = 0.0
    #: Seconds of cooldown after the job has succeeded.
    linger: float = 0.0

    @property
    def asks(self) -> bool:
        """Whether a worker must ask about the key before it starts the job."""
        return self.mode is not Mode.WINDOW


def lock_of(message: Message) -> UniqueLock | None:
    """The lock that a message needs; None if it needs none, or its headers are invalid."""
    key, unique = message.extra.get(UNIQUE_KEY), message.extra.get(UNIQUE)
    if not isinstance(key, str) or not key:
        return None
    linger = _seconds(message.extra.get(LINGER)) or 0.0
    if unique in (Mode.START, Mode.DONE):
        return UniqueLock(key=key, mode=Mode(unique), linger=linger)
    seconds = _seconds(unique)
    return None if seconds is None else UniqueLock(key=key, mode=Mode.WINDOW, seconds=seconds)


def key_names(messages: Iterable[Message]) -> list[str]:
    """The keys for which workers must ask before they start these jobs, without duplicates."""
    locks = (lock_of(message) for message in messages)
    return list(dict.fromkeys(lock.key for lock in locks if lock is not None and lock.asks))


def with_lock(message: Message, lock: UniqueLock) -> Message:
    """The message with the headers that request this lock."""
    unique = lock.seconds if lock.mode is Mode.WINDOW else str(lock.mode)
    linger = {LINGER: lock.linger} if lock.linger else {}
    return replace(message, extra={**message.extra, UNIQUE: unique, UNIQUE_KEY: lock.key, **linger})


def with_burst_key(message: Message, key: str) -> Message:
    """The message with the key of its throttle or debounce in a header."""
    return replace(message, extra={**message.extra, BURST_KEY: key})


def key_in(headers: Mapping[str, Any]) -> str:
    """The key with which a message with these headers was enqueued; "" for none."""
    key = headers.get(UNIQUE_KEY) or headers.get(BURST_KEY)
    return key if isinstance(key, str) else ""


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_SECONDS:
        return float(value)
    return None


class StoredMessage(PlainWithMessages, frozen=True, kw_only=True, gc=False):
    """A message stored with its key: to be published later, or for its arguments."""

    message: Message
    #: The id of the client's call that it came with: a repeated call is executed once.
    call: str
    #: Seconds of cooldown after the message is published, for a throttle.
    closes: float = 0.0


class KeyHolder(PlainWithMessages, frozen=True, kw_only=True, gc=False):
    """The job that holds the key."""

    id: str
    call: str
    job: str
    queue: str
    mode: Mode
    #: When it took the key, in Unix seconds.
    since: float
    #: Distinguishes it from the key's other holders, which may have the same id.
    serial: int
    #: The tenant that the job belongs to; "" for none.
    tenant: str = ""
    #: When it loses the key automatically; None for never.
    until: float | None = None
    linger: float = 0.0
    #: Unix seconds before which it does not run.
    run_at: float | None = None
    phase: Phase = Phase.WAITING
    #: The worker that runs it, the id of this run, and the number of runs.
    worker: str = ""
    run: str = ""
    starts: int = 0
    #: Arguments that replace its own.
    content: StoredMessage | None = None


class PastHolder(PlainWithMessages, frozen=True, kw_only=True, gc=False):
    """A job that held the key and may be delivered again."""

    id: str
    call: str
    #: When it is forgotten, in Unix seconds.
    until: float
    #: The arguments that it was started with, if it may have to start again without holding a key.
    content: StoredMessage | None = None


class Cooldown(PlainWithMessages, frozen=True, kw_only=True, gc=False):
    """The period during which no job gets a free key."""

    until: float
    #: The job that held it last.
    id: str
    call: str = ""


class Key(PlainWithMessages, frozen=True, kw_only=True, gc=False):
    """The complete state of one key."""

    name: str
    #: Total number of holders so far.
    serial: int = 0
    holder: KeyHolder | None = None
    #: The message to publish when the holder has ended, or without a holder at `due`, in Unix seconds.
    next: StoredMessage | None = None
    due: float | None = None
    closed: Cooldown | None = None
    ended: tuple[PastHolder, ...] = ()

    @property
    def holders(self) -> "tuple[KeyHolder | PastHolder, ...]":
        """The current holder and the past ones."""
        return (*(() if self.holder is None else (self.holder,)), *self.ended)

    @property
    def is_free(self) -> bool:
        """Whether its state is empty, apart from the number of holders."""
        return self.holder is None and self.next is None and self.closed is None and not self.ended

    def is_shown(self, text: str = "") -> bool:
        """Whether lists include it: it is held, kept or closed, and the text is in its name, its job or a job's id."""
        kept = None if self.next is None else self.next.message
        job = self.holder or kept
        if job is None and self.closed is None:
            return False
        if not text:
            return True
        id = job.id if job is not None else self.closed.id if self.closed is not None else ""
        following = "" if kept is None or kept is job else kept.id
        return text in f"{self.name} {'' if job is None else job.job} {id} {following}"

    def job_after(self, id: str) -> str:
        """The id of the job that has the key now or gets it next; "" if that is the job with this id, or none.

        A job that runs again after its present run may keep its id.
        """
        holder, kept = self.holder, None if self.next is None else self.next.message.id
        if holder is not None and holder.id != id:
            return "" if kept == id else holder.id
        return kept if kept is not None and (holder is not None or kept != id) else ""

    @property
    def closed_until(self) -> float | None:
        """The Unix time until which enqueues are refused or postponed; None without a fixed time."""
        if self.holder is not None:
            return self.holder.until
        return None if self.closed is None else self.closed.until

    @property
    def alarm(self) -> float | None:
        """The Unix time at which its stored state next changes by itself; None for never."""
        return self.due if self.next is not None and self.holder is None else None

    @property
    def over(self) -> float | None:
        """The Unix time at which it becomes free by itself; None for never."""
        if self.next is not None or (self.holder is not None and self.holder.until is None):
            return None
        until = [one.until for one in self.ended]
        until += [self.closed.until] if self.closed is not None else []
        until += [self.holder.until] if self.holder is not None and self.holder.until is not None else []
        return max(until, default=None)

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        holder = plain.get("holder")
        if holder:
            # JSON creates a new string and a new float for each key.
            repeated = {name: shared(holder[name]) for name in _REPEATED if holder.get(name)}
            plain = {**plain, "holder": {**holder, **repeated, "linger": holder.get("linger") or 0.0}}
        return super().from_plain(plain)


#: The fields of a holder that many keys have in common.
_REPEATED = ("job", "queue", "tenant", "worker")


@lru_cache(maxsize=1_024)
def shared(text: str) -> str:
    """An equal string that is always the same object, since 100,000 keys may name the same job and queue."""
    return text


class KeyRequest(PlainWithMessages, frozen=True, kw_only=True):
    """An enqueue's request for a key."""

    key: str
    message: Message
    #: See StoredMessage.
    call: str
    #: The action if another job holds the key: one of palermo.core.unique_rules.ON_DUPLICATE.
    on_duplicate: str = "return"
    #: "debounce" or "throttle", and for how many seconds; "" if the lock in the message applies.
    spread: str = ""
    seconds: float = 0.0
