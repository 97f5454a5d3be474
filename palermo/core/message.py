"""A job on the wire: its fields, and how they are written to headers and read from them.

docs/internals/wire.md is the specification of this file. Reading never fails: if a known header has the wrong type, it
is kept with the foreign headers, and `defect` describes it. So the worker can fail the job without changing it.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.failure import ATTEMPTS_BUDGET, Attempt, Failure, attempts_header, attempts_in, cut, cut_attempts
from palermo.core.topology import DEFAULT_QUEUE, MAX_ID_BYTES, is_failed
from palermo.errors import HeadersTooLarge

#: Types that a header supports: text, numbers, bytes, None, datetime, Decimal, and lists and dicts of these.
HeaderValue = Any
Headers = Mapping[str, HeaderValue]


class Opaque(bytes):
    """A header value in the broker's own encoding, which Palermo passes on without decoding it."""

    __slots__ = ()


NO_HEADERS: Headers = MappingProxyType({})

JSON = "application/json"

#: Maximum size of a body in bytes: RabbitMQ 4 refuses messages above 16 MiB by default (max_message_size).
MAX_BODY = 16 * 1024 * 1024

#: Maximum size of all headers together on the wire, in bytes. A content header is one frame, and a frame above
#: frame_max (131,072, including 8 of its own) makes RabbitMQ close the connection; 131,064 was measured to pass. The
#: remaining 4,096 bytes are for the properties.
MAX_HEADERS = 131_064 - 4_096

#: Maximum size in bytes of the data that a job saves for its next run, as JSON.
MAX_SAVED = 1_024

#: Upper bound of all durations and instants. As an instant it is in 2242, before the clocks of some systems overflow.
MAX_SECONDS = 2.0**33

#: Maximum difference between the clocks of two machines, in seconds. If an instant exceeds what the rules allow by more
#: than this, it was written with a wrong clock, and is ignored.
CLOCK_DIFFERENCE = 600.0

#: Upper bound of all counts, so that incrementing stays within the range of a header.
_MAX_COUNT = 2**31

#: Numbers from here on are milliseconds, as JavaScript writes them. In seconds they would be after 2242; in
#: milliseconds they are after 1973.
_MILLISECONDS = 1e11

#: Compiled on first use.
_DECIMAL_NUMBER = r"[0-9]{1,20}(\.[0-9]{1,20})?"

#: The header that names the headers that had to be left out, and its maximum size in bytes.
_DROPPED, _MAX_DROPPED = "dropped-headers", 1_000

#: Headers that are never published again. RabbitMQ takes an old x-death for a cycle and drops the message, and CC and
#: BCC would send copies.
_STRIPPED = frozenset({"CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count"})
_STRIPPED_PREFIXES = ("x-first-death-", "x-last-death-")

_TEXT = {
    "job-class": "job",
    "preview": "preview",
    "arguments": "arguments",
    "worker": "worker",
    "tenant": "tenant",
    "saved": "saved",
}
_NUMBER = {
    "created-at": "created_at",
    "retries": "retries",
    "policy-retries": "policy_retries",
    "max-retries": "max_retries",
}
_SECONDS = {
    "timeout": "timeout",
    "rerun-after": "rerun_after",
    "expires-at": "expires_at",
    "run-at": "run_at",
    "queued-at": "queued_at",
    "retrying-since": "retrying_since",
    "share": "share",
}
_TRUTH = {"keep-result": "keep_result"}
#: The options that a message stores unchanged, and the field of each.
OPTION_FIELDS: Mapping[str, str] = {
    "retries": "max_retries",
    "timeout": "timeout",
    "rerun_after": "rerun_after",
    "keep_result": "keep_result",
    "tenant": "tenant",
    "share": "share",
}
_COUNTS = frozenset({"retries", "policy-retries", "max-retries"})
_ATTEMPTS = "attempts-log"

#: The header of each field, for writing.
_WRITTEN_UNLESS_EMPTY = (("job-class", "job"), ("queue", "queue"), ("arguments", "arguments"), ("tenant", "tenant"))
_WRITTEN_UNLESS_NONE = tuple(
    (header, name)
    for header, name in (_NUMBER | _SECONDS | _TRUTH | _TEXT).items()
    if header not in dict(_WRITTEN_UNLESS_EMPTY)
)
#: By field name: its header, and whether the header is left out if the value is empty rather than only if it is None.
#: `id`, `failure` and `extra` are handled separately.
HEADER_OF: Mapping[str, tuple[str, bool]] = {
    **{field: (header, True) for header, field in _WRITTEN_UNLESS_EMPTY},
    **{field: (header, False) for header, field in _WRITTEN_UNLESS_NONE},
}
#: By header name: its field and the type of its value, for values that need no conversion.
_AS_IT_IS: dict[str, tuple[str, type]] = {
    **{name: (field, str) for name, field in _TEXT.items()},
    **{name: (field, int) for name, field in _NUMBER.items()},
    **{name: (field, bool) for name, field in _TRUTH.items()},
}

#: The header with which a program without Palermo schedules a job; `run-at` takes precedence. See
#: docs/internals/wire.md.
_FOREIGN_RUN_AT = "perform_job_at"

#: The headers of a job made from an event: the event's topic and its id.
TOPIC, EVENT_ID = "topic", "event-id"

#: The header with the id of the job that enqueued this one during its run.
PARENT = "parent-id"

#: The header of a job that RabbitMQ's leader publishes again although the first copy may have run, or may be in its
#: queue.
PUBLISHED_AGAIN = "published-again"

_FAILURE = ("exception-class", "exception-message", "stack-trace", "failed-at")

#: The headers that Palermo reads.
KNOWN_HEADERS = frozenset({"id", "queue", _ATTEMPTS, *_AS_IT_IS, *_SECONDS, *_FAILURE})


class Message(Struct, frozen=True, kw_only=True):
    """A job on the wire: what to run, with which bytes, and its history so far."""

    #: Text of 1 to 255 bytes, a UUID unless the caller chose one; kept through retries and requeues.
    id: str
    #: The queue it was enqueued to, and to which a retry or requeue returns it.
    queue: str
    #: The job's wire name; "" if the message has none.
    job: str
    #: The serialized arguments; empty means no arguments.
    body: bytes = b""
    #: Media type of the body's serializer.
    content_type: str = JSON
    #: The compression of the body; "" for none.
    content_encoding: str = ""
    #: The form of the decoded body: "" for arguments by its shape, "both" for {"args": …, "kwargs": …}.
    arguments: str = ""
    #: Unix seconds; None if the publisher did not set it.
    created_at: int | None = None
    #: Number of retries and requeues; None on a fresh job, 0 after its first failure.
    retries: int | None = None
    #: Number of retries by policy; a requeue sets it to 0.
    policy_retries: int | None = None
    #: Maximum number of retries by policy, if set for this enqueue; None for the job's declaration.
    max_retries: int | None = None
    #: Unix seconds of the first failure that policy retried; a requeue removes it.
    retrying_since: float | None = None
    #: The arguments for display, at most 100 characters; "..." marks cut ones. None if the publisher did not set it.
    preview: str | None = None
    #: Time limit of one run in seconds; None for no limit of its own.
    timeout: float | None = None
    #: Seconds after which an unfinished run loses its claim; its process is killed, and the job runs again.
    rerun_after: float | None = None
    #: Unix seconds after which it is not started any more; None for never.
    expires_at: float | None = None
    #: Unix seconds before which it is not started; None for immediately.
    run_at: float | None = None
    #: Unix seconds of its enqueue, for measuring its wait; None if unknown, and after a requeue.
    queued_at: float | None = None
    #: Whether its result is stored in the journal; None for the job's declaration.
    keep_result: bool | None = None
    #: The job's tenant if several tenants share a queue; "" for none. See fair_scheduling.py.
    tenant: str = ""
    #: Its tenant's share of the queue, relative to the default of 1; None for 1.
    share: float | None = None
    #: Its last error; None unless it is in `failed` or waits for a retry.
    failure: Failure | None = None
    #: Its earlier errors, oldest first, within a budget.
    attempts: tuple[Attempt, ...] = ()
    #: The tag of the worker's slot in which it last failed.
    worker: str | None = None
    #: Data that its runs have saved for the next one, as JSON: see palermo/jobs/saved.py.
    saved: str | None = None
    #: Jobs that a worker runs in one call with this one; never on the wire.
    companions: tuple["Message", ...] = ()
    #: Other AMQP properties, unchanged: priority, correlation_id, reply_to, type, app_id, timestamp.
    properties: Mapping[str, Any] = NO_HEADERS
    #: Headers unknown to Palermo, unchanged.
    extra: Headers = NO_HEADERS
    #: A description of the error in a known header; "" for none.
    defect: str = ""

    @property
    def priority(self) -> int:
        """Its priority in a queue with priorities, where the highest runs first; 0 by default."""
        found = self.properties.get("priority")
        return found if isinstance(found, int) and not isinstance(found, bool) else 0

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return (self.retries or 0) + 1

    @property
    def requeued(self) -> bool:
        """Whether an operator has requeued it since it was enqueued; retries by policy don't count."""
        return (self.retries or 0) > (self.policy_retries or 0)

    def waited(self, now: float) -> float | None:
        """Seconds that it has waited since it became runnable; None if the start of the wait is unknown."""
        if self.queued_at is None:
            return None
        since = self.queued_at
        if self.run_at is not None and self.run_at > since:
            since = self.run_at
        return now - since if now > since else 0.0

    @property
    def topic(self) -> str:
        """The topic of the event that became this job; "" for any other job."""
        found = self.extra.get(TOPIC)
        return found if isinstance(found, str) and isinstance(self.extra.get(EVENT_ID), str) else ""

    @property
    def parent(self) -> str:
        """The id of the job that enqueued this job, or published its event, while it ran; "" for none."""
        return parent_in(self.extra)

    @property
    def signed_job(self) -> str:
        """The job name that a signature of the body covers.

        For an event, the signature covers the topic, since all groups share the body.
        """
        return self.topic or self.job

    @property
    def signed_id(self) -> str:
        """The id that a signature of the body covers.

        All jobs of an event or a recurring job share a body, and this id.
        """
        if self._event:
            return self._event
        name = self.extra.get("recurring")
        return f"{name}@" if isinstance(name, str) and self.id.startswith(f"{name}@") else self.id

    @property
    def _event(self) -> str:
        """The id of the event that this job was made from, or ""."""
        event = self.extra.get(EVENT_ID)
        return event if isinstance(event, str) and self.id.startswith(f"{event}@") else ""


def parent_in(headers: Headers) -> str:
    """The parent's id in these headers; "" for none."""
    found = headers.get(PARENT)
    return found if isinstance(found, str) else ""


def to_headers(message: Message) -> dict[str, HeaderValue]:
    """All headers of the message, ready to publish. Those that are only valid in a first publication are left out."""
    headers: dict[str, HeaderValue] = {"id": message.id}
    if message.extra:
        headers = {
            name: value
            for name, value in message.extra.items()
            if name not in _STRIPPED and not name.startswith(_STRIPPED_PREFIXES)
        } | headers
    for name, field_name in _WRITTEN_UNLESS_EMPTY:
        if text := getattr(message, field_name):
            headers[name] = text
    for name, field_name in _WRITTEN_UNLESS_NONE:
        value = getattr(message, field_name)
        if value is not None:
            headers[name] = value
    if message.attempts:
        headers[_ATTEMPTS] = attempts_header(message.attempts)
    if message.failure is not None:
        headers["exception-class"] = message.failure.exception_class
        headers["exception-message"] = message.failure.message
        headers["stack-trace"] = message.failure.stack_trace
        headers["failed-at"] = message.failure.failed_at
    return headers


def from_wire(
    *,
    message_id: str | None,
    content_type: str | None,
    content_encoding: str | None,
    headers: Headers,
    body: bytes,
    taken_from: str | None,
    new_id: Callable[[], str],
    properties: Mapping[str, Any] = NO_HEADERS,
) -> Message:
    """Read an AMQP message. Never raises: `defect` describes the problem with it.

    `taken_from` is the queue that the message was in. It overrides the header `queue`, except in a failed queue. For a
    scheduled message it is None, and the header applies. `new_id` generates an id for a message without one.
    """
    queue, written = taken_from, DEFAULT_QUEUE
    fields: dict[str, Any] = {"job": "", "body": body, "content_type": content_type or JSON, "properties": properties}
    extra: dict[str, HeaderValue] = {}
    failure: dict[str, Any] = {}
    defects: list[str] = []
    for name, value in headers.items():
        known = _AS_IT_IS.get(name)
        if known is not None:
            field, kind = known
            if value.__class__ is kind and (name not in _COUNTS or _is_count(value)):
                fields[field] = value
                continue
        elif name == "id":
            if message_id:
                continue
            if isinstance(value, str) and len(value.encode()) <= MAX_ID_BYTES:
                message_id = value
                continue
        elif name == "queue":
            if isinstance(value, str):
                written = value
                continue
        elif name == "run-at":
            try:
                fields["run_at"] = read_instant(value)
                continue
            except ValueError:
                pass
        elif name in _SECONDS:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < MAX_SECONDS:
                fields[_SECONDS[name]] = float(value)
                continue
        elif name == _ATTEMPTS:
            if isinstance(value, list | tuple):
                fields["attempts"] = attempts_in(value)
                continue
        elif name in _FAILURE:
            failure[name] = value
            continue
        else:
            extra[name] = value
            continue
        extra[name] = value
        defects.append(_defect(name, value))
    if _FOREIGN_RUN_AT in extra and "run_at" not in fields:
        try:
            fields["run_at"] = read_instant(extra[_FOREIGN_RUN_AT])
        except ValueError:
            defects.append(_defect(_FOREIGN_RUN_AT, extra[_FOREIGN_RUN_AT]))
    fields["id"] = message_id or new_id()
    if queue is None or (queue != written and is_failed(queue)):
        queue = written
    fields["queue"] = queue
    fields["extra"] = extra or NO_HEADERS
    if content_encoding:
        fields["content_encoding"] = content_encoding
    if failure:
        fields["failure"] = _failure_from(failure)
    if defects:
        fields["defect"] = "; ".join(defects)
    return Message(**fields)


def _is_count(value: HeaderValue) -> bool:
    return bool(0 <= value < _MAX_COUNT)


def _defect(name: str, value: HeaderValue) -> str:
    return f"header {name!r} is {str(value)[:80]!r} ({type(value).__name__}) and must be {_wanted(name)}"


def _wanted(name: str) -> str:
    if name == "id":
        return f"text of 1 to {MAX_ID_BYTES} bytes"
    if name in ("run-at", _FOREIGN_RUN_AT):
        return "an instant from 1970 to 2242: Unix seconds or milliseconds, ISO 8601 with a zone, or a timestamp"
    if name in _NUMBER:
        return f"an integer from 0 to {_MAX_COUNT - 1}" if name in _COUNTS else "an integer"
    if name in _SECONDS:
        return "a number above 0"
    if name in _TRUTH:
        return "true or false"
    return "a list" if name == _ATTEMPTS else "text"


def read_instant(value: HeaderValue) -> float:
    """Parse an instant as Unix seconds: a number, its text, a timestamp, or ISO 8601 text. Raises ValueError.

    A number of 100,000,000,000 or more is in milliseconds.
    """
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if re.fullmatch(_DECIMAL_NUMBER, text) else datetime.fromisoformat(text)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        seconds = value.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = min(value, 1_000 * MAX_SECONDS) / (1 if value < _MILLISECONDS else 1_000)
    else:
        raise ValueError(f"{type(value).__name__} is not a time")
    if not 0 <= seconds < MAX_SECONDS:
        raise ValueError(f"{seconds} is before 1970 or after 2242")
    return seconds


def _failure_from(headers: Mapping[str, HeaderValue]) -> Failure | None:
    """The failure in a message's error headers, also from other programs; None without an exception class."""
    if "exception-class" not in headers:
        return None
    failed_at = headers.get("failed-at")
    return cut(
        Failure(
            exception_class=str(headers["exception-class"]),
            message=str(headers.get("exception-message") or ""),
            stack_trace=str(headers.get("stack-trace") or ""),
            failed_at=failed_at if isinstance(failed_at, int) and 0 <= failed_at < MAX_SECONDS else 0,
        )
    )


def fit_headers(message: Message, limit: int = MAX_HEADERS) -> Message:
    """The message with its headers cut until they fit one frame.

    Cuts the earlier errors first, then the traceback, then the error's message. After that, drops foreign headers, the
    largest first, and names them in `dropped-headers`. Raises HeadersTooLarge for a message without an error, which its
    caller can still change.
    """
    size = headers_size(to_headers(message))
    if size <= limit:
        return message
    for budget in (ATTEMPTS_BUDGET // 8, 0) if message.attempts else ():
        message = replace(message, attempts=cut_attempts(message.attempts, budget))
        if headers_size(to_headers(message)) <= limit:
            return message
    if message.failure is None:
        raise HeadersTooLarge(
            f"the headers of job {message.id} have {size} bytes; the maximum is {limit}. Pass the data as arguments."
        )
    for stack_trace, text in ((4_000, 2_000), (0, 500)):
        message = replace(message, failure=cut(message.failure, stack_trace=stack_trace, message=text))
        if headers_size(to_headers(message)) <= limit:
            return message
    room = limit - headers_size(to_headers(replace(message, extra=NO_HEADERS)))
    return replace(message, extra=without_largest(message.extra, room))


def without_largest(headers: Headers, room: int) -> dict[str, HeaderValue]:
    """The headers that fit into `room` bytes. Leaves out the largest ones, and names them in `dropped-headers`."""
    kept = dict(headers)
    sizes = {name: headers_size({name: value}) for name, value in kept.items()}
    size = sum(sizes.values())
    if size <= room:
        return kept
    before = kept.pop(_DROPPED, None)
    names = [before] if isinstance(before, str) else []
    size += _MAX_DROPPED - sizes.pop(_DROPPED, 0)
    for name in sorted(kept, key=lambda name: sizes[name], reverse=True):
        if size <= room:
            break
        del kept[name]
        size -= sizes[name]
        names.append(name)
    if names:
        kept[_DROPPED] = ", ".join(names).encode()[:_MAX_DROPPED].decode(errors="ignore")
    return kept


def headers_size(value: HeaderValue) -> int:
    """An upper bound of the value's size in an AMQP field table, in bytes."""
    match value:
        case str():
            return 5 + len(value.encode(errors="replace"))
        case bytes() | bytearray():
            return 5 + len(value)
        case Mapping():
            return 5 + sum(
                1 + len(str(name).encode(errors="replace")) + headers_size(item) for name, item in value.items()
            )
        case list() | tuple():
            return 5 + sum(headers_size(item) for item in value)
        case _:
            return 9
