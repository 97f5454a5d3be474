"""Keys of unique jobs: what a message says of its key, what is known of a key, and both as values that JSON has.

What becomes of a key is in palermo/core/unique.py; docs/design.md says why nothing else may decide about one.
"""

import base64
from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from palermo.core.message import MAX_SECONDS, NO_HEADERS, Message, from_wire, to_headers
from palermo.core.values import dataclass

#: The headers by which a message says that it needs a key: how long, which, and how many seconds it stays closed then.
UNIQUE, UNIQUE_KEY, LINGER = "unique", "unique-key", "unique-linger"


class Mode(StrEnum):
    """How long a job has its key."""

    START = "until_start"  #: until a worker starts it
    DONE = "until_done"  #: until it has ended, retries included
    WINDOW = "seconds"  #: for so many seconds from its enqueuing


class Phase(StrEnum):
    """Where the holder of a key is."""

    WAITING = "waiting"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What a message says of its key."""

    key: str
    mode: Mode
    #: For Mode.WINDOW.
    seconds: float = 0.0
    #: Seconds for which the key stays closed once the job has ended well.
    linger: float = 0.0

    @property
    def asks(self) -> bool:
        """Whether a worker must ask before it starts the job."""
        return self.mode is not Mode.WINDOW


def lock_of(message: Message) -> Lock | None:
    """The lock that a message needs; None if it needs none, or says so in a way that means nothing."""
    key, unique = message.extra.get(UNIQUE_KEY), message.extra.get(UNIQUE)
    if not isinstance(key, str) or not key:
        return None
    linger = _seconds(message.extra.get(LINGER)) or 0.0
    if unique in (Mode.START, Mode.DONE):
        return Lock(key=key, mode=Mode(unique), linger=linger)
    seconds = _seconds(unique)
    return None if seconds is None else Lock(key=key, mode=Mode.WINDOW, seconds=seconds)


def locked(message: Message, lock: Lock) -> Message:
    """The message, saying that it needs this lock."""
    unique = lock.seconds if lock.mode is Mode.WINDOW else str(lock.mode)
    linger = {LINGER: lock.linger} if lock.linger else {}
    return replace(message, extra={**message.extra, UNIQUE: unique, UNIQUE_KEY: lock.key, **linger})


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_SECONDS:
        return float(value)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A message that the arbiter keeps."""

    message: Message
    #: Which call of a client it came with: asked twice, a call is done once.
    call: str
    #: Seconds for which the key is closed after its publication, for a throttle.
    closes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The job that has the key."""

    id: str
    call: str
    job: str
    queue: str
    mode: Mode
    #: Unix seconds of its taking the key.
    since: float
    #: Tells it from the key's other holders, of which some may have its id.
    serial: int
    #: Whose job it is; "" for nobody's.
    tenant: str = ""
    #: When it loses the key by itself; None for never.
    until: float | None = None
    linger: float = 0.0
    #: Unix seconds before which it does not run.
    run_at: float | None = None
    phase: Phase = Phase.WAITING
    #: Which worker runs it, what tells this run from others, and how many there have been.
    worker: str = ""
    run: str = ""
    starts: int = 0
    #: The arguments with which it is to run instead of its own.
    content: Kept | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that had the key, and of which a message may still be somewhere."""

    id: str
    call: str
    #: Unix seconds until which it is remembered.
    until: float
    #: The arguments that it was started with, of one that has no key any more and may have to be started again.
    content: Kept | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """No job has the key, and none gets it until an instant."""

    until: float
    #: The job because of which.
    id: str
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """All that is known of one key."""

    name: str
    #: How many holders there have been.
    serial: int = 0
    holder: Holder | None = None
    #: What is published once the holder has ended, or without one when it is `due`, in Unix seconds.
    next: Kept | None = None
    due: float | None = None
    closed: Closed | None = None
    ended: tuple[Ended, ...] = field(default=())

    @property
    def is_free(self) -> bool:
        """Whether nothing is known of it any more, but how often it was taken."""
        return self.holder is None and self.next is None and self.closed is None and not self.ended

    @property
    def alarm(self) -> float | None:
        """When time changes something that must be written down: Unix seconds, or None."""
        return self.due if self.next is not None and self.holder is None else None

    @property
    def over(self) -> float | None:
        """When the key is free without anything being done; None if it is not by then."""
        if self.next is not None or (self.holder is not None and self.holder.until is None):
            return None
        until = [one.until for one in self.ended]
        until += [self.closed.until] if self.closed is not None else []
        until += [self.holder.until] if self.holder is not None and self.holder.until is not None else []
        return max(until, default=None)

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        plain: dict[str, Any] = {"name": self.name, "serial": self.serial}
        if self.holder is not None:
            plain["holder"] = _plain(self.holder)
        if self.next is not None:
            plain["next"] = _plain(self.next)
        if self.due is not None:
            plain["due"] = self.due
        if self.closed is not None:
            plain["closed"] = _plain(self.closed)
        if self.ended:
            plain["ended"] = [_plain(one) for one in self.ended]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Key":
        """What to_plain wrote. Raises KeyError, TypeError, ValueError for what is none."""
        holder, kept, closed = plain.get("holder"), plain.get("next"), plain.get("closed")
        return cls(
            name=str(plain["name"]),
            serial=int(plain["serial"]),
            holder=None if holder is None else _holder(holder),
            next=_kept(kept),
            due=plain.get("due"),
            closed=None if closed is None else Closed(**closed),
            ended=tuple(Ended(**{**one, "content": _kept(one.get("content"))}) for one in plain.get("ended", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an enqueue of a job with a key asks for."""

    key: str
    message: Message
    #: See Kept.
    call: str
    #: What happens if another job has the key: one of palermo.core.unique.ON_DUPLICATE.
    on_duplicate: str = "return"
    #: "debounce", "throttle", or "" for what the message says of its lock; and how many seconds.
    spread: str = ""
    seconds: float = 0.0

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        return _plain(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Claim":
        """What to_plain wrote. Raises KeyError, TypeError, ValueError for what is none."""
        return cls(**{**plain, "message": message_from_plain(plain["message"])})


def message_to_plain(message: Message) -> dict[str, Any]:
    """A message as values that JSON has."""
    return {
        "id": message.id,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": to_headers(message),
        "body": base64.b64encode(message.body).decode(),
    }


def message_from_plain(plain: Mapping[str, Any]) -> Message:
    """What message_to_plain wrote. Raises KeyError, TypeError, ValueError for what is none."""
    id = str(plain["id"])
    return from_wire(
        message_id=id,
        content_type=plain["content_type"],
        content_encoding=plain["content_encoding"],
        headers=plain["headers"] or NO_HEADERS,
        body=base64.b64decode(plain["body"]),
        taken_from=None,
        new_id=lambda: id,
    )


def _plain(value: "Claim | Holder | Kept | Closed | Ended") -> dict[str, Any]:
    """The fields of one of these, without those that have none."""
    plain: dict[str, Any] = {}
    for name in value.__dataclass_fields__:
        one = getattr(value, name)
        if one is None:
            continue
        if isinstance(one, Message):
            one = message_to_plain(one)
        elif isinstance(one, Kept):
            one = _plain(one)
        plain[name] = one
    return plain


def _kept(plain: Mapping[str, Any] | None) -> Kept | None:
    return None if plain is None else Kept(**{**plain, "message": message_from_plain(plain["message"])})


def _holder(plain: Mapping[str, Any]) -> Holder:
    typed = {"mode": Mode(plain["mode"]), "phase": Phase(plain["phase"]), "content": _kept(plain.get("content"))}
    return Holder(**{**plain, **typed})
