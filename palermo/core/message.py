"""A job on the wire: what it is made of, and how it becomes headers and comes back.

The law of this file is docs/wire.md. Reading never fails: a known header of the wrong
type stays among the foreign ones and is described in `defect`, so that the worker can
fail the job with its body and headers untouched.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from palermo.core import attempts
from palermo.core.attempts import Attempt
from palermo.core.failure import Failure, cut
from palermo.core.topology import DEFAULT_QUEUE, is_failed
from palermo.core.values import dataclass
from palermo.errors import HeadersTooLarge

#: What a header may hold: text, numbers, bytes, None, datetime, Decimal, and lists and dicts of these.
HeaderValue = Any
Headers = Mapping[str, HeaderValue]

NO_HEADERS: Headers = MappingProxyType({})

JSON = "application/json"

#: The most a body may measure: RabbitMQ 4 refuses messages above 16 MiB by default (max_message_size).
MAX_BODY = 16 * 1024 * 1024

#: What all headers together may measure on the wire, in bytes. A content header is one frame, and a frame of more
#: than frame_max (131,072, of which 8 are its own) makes RabbitMQ close the connection; 131,064 was measured to pass.
#: What is left of it here is room for the properties.
MAX_HEADERS = 131_064 - 4_096

#: No duration and no instant reaches this: beyond it, in the year 2242, the clocks of some systems end.
MAX_SECONDS = 2.0**33

#: Never published again. RabbitMQ drops a message whose old x-death shows a cycle, and CC and BCC route copies.
_STRIPPED = frozenset({"CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count"})
_STRIPPED_PREFIXES = ("x-first-death-", "x-last-death-")

_TEXT = {
    "job-class": "job",
    "preview": "preview",
    "arguments": "arguments",
    "worker": "worker",
    "tenant": "tenant",
}
_NUMBER = {
    "created-at": "created_at",
    "retries": "retries",
    "policy-retries": "policy_retries",
    "max-retries": "max_retries",
}
_SECONDS = {
    "timeout": "timeout",
    "lock-for": "lock_for",
    "expires-at": "expires_at",
    "run-at": "run_at",
    "queued-at": "queued_at",
    "retrying-since": "retrying_since",
    "share": "share",
}
_TRUTH = {"keep-result": "keep_result"}
_ATTEMPTS = "attempts-log"

#: Headers with the fields that they are written from.
_WRITTEN_UNLESS_EMPTY = (("job-class", "job"), ("queue", "queue"), ("arguments", "arguments"), ("tenant", "tenant"))
_WRITTEN_UNLESS_NONE = tuple(
    (header, name)
    for header, name in (_NUMBER | _SECONDS | _TRUTH | _TEXT).items()
    if header not in dict(_WRITTEN_UNLESS_EMPTY)
)
#: By the name of a field: the header that it is written to, and whether it is left out when it is empty, not only when
#: it is None. Those of `id`, of what only a job has that has failed, and foreign ones are not among them.
HEADER_OF: Mapping[str, tuple[str, bool]] = {
    **{field: (header, True) for header, field in _WRITTEN_UNLESS_EMPTY},
    **{field: (header, False) for header, field in _WRITTEN_UNLESS_NONE},
}
#: By the name of a header: the field that takes it, and the type with which it does so without another look.
_AS_IT_IS: dict[str, tuple[str, type]] = {
    **{name: (field, str) for name, field in _TEXT.items()},
    **{name: (field, int) for name, field in _NUMBER.items()},
    **{name: (field, bool) for name, field in _TRUTH.items()},
}

#: How a program that schedules without Palermo says when (docs/wire.md); `run-at` wins.
_FOREIGN_RUN_AT = "perform_job_at"

#: Of a job that an event has become: its topic, and the event's own id.
TOPIC, EVENT_ID = "topic", "event-id"

_FAILURE = ("exception-class", "exception-message", "stack-trace", "failed-at")

#: The headers that have a meaning here.
KNOWN_HEADERS = frozenset({"id", "queue", _ATTEMPTS, *_AS_IT_IS, *_SECONDS, *_FAILURE})


@dataclass(frozen=True, kw_only=True)
class Message:
    """A job on the wire: what to run, with which bytes, and what has happened to it so far.

    Without slots, so that `made` can make one at a tenth of the constructor's price.
    """

    #: Text of 1 to 255 bytes, a UUID unless the caller chose one; kept through retries and requeues.
    id: str
    #: The queue it was enqueued to, and where a retry or requeue puts it back.
    queue: str
    #: The job's wire name; "" where the message names none.
    job: str
    #: The serialized arguments; empty means no arguments.
    body: bytes = b""
    #: Media type of the serializer that wrote the body.
    content_type: str = JSON
    #: The compression of the body; "" for none.
    content_encoding: str = ""
    #: How the decoded body becomes arguments: "" by its shape, "both" for {"args": …, "kwargs": …}.
    arguments: str = ""
    #: Unix seconds; None where the publisher did not say.
    created_at: int | None = None
    #: How often it has been tried again, by policy or by hand; None on a fresh job, 0 after its first failure.
    retries: int | None = None
    #: The same, by policy alone; a requeue by hand starts it again at 0.
    policy_retries: int | None = None
    #: How often policy may try it again, where this one enqueue said so; None where the job's declaration decides.
    max_retries: int | None = None
    #: Unix seconds of the first failure that policy answered; a requeue by hand forgets it.
    retrying_since: float | None = None
    #: The arguments for people, at most 100 characters and then "..."; None where the publisher gave none.
    preview: str | None = None
    #: Seconds that one run may take; None for no limit of its own.
    timeout: float | None = None
    #: Seconds after which a run that has not ended loses its claim; its process is killed, and the job runs again.
    lock_for: float | None = None
    #: Unix seconds after which it is not started any more; None for never.
    expires_at: float | None = None
    #: Unix seconds before which it is not started; None for at once.
    run_at: float | None = None
    #: Unix seconds of its enqueuing, from which its wait counts; None where nobody said, and after a requeue.
    queued_at: float | None = None
    #: Whether what it returns is kept in the journal; None where the job's declaration decides.
    keep_result: bool | None = None
    #: Whose job it is, where the jobs of a queue belong to several; "" for nobody's. See palermo.core.shares.
    tenant: str = ""
    #: How much of the queue its tenant is to have, beside others' 1; None for 1.
    share: float | None = None
    #: Why it failed last; None unless it lies in `failed`, or waits to be tried again.
    failure: Failure | None = None
    #: Why it failed before that, oldest first, within a budget.
    attempts: tuple[Attempt, ...] = ()
    #: The tag of the worker's slot in which it failed last.
    worker: str | None = None
    #: Jobs that a worker has taken to be run in one call with this one; never on the wire.
    companions: tuple["Message", ...] = ()
    #: Other AMQP properties, as they came: priority, correlation_id, reply_to, type, app_id, timestamp.
    properties: Mapping[str, Any] = field(default_factory=lambda: NO_HEADERS)
    #: Headers that Palermo does not know, as they came.
    extra: Headers = field(default_factory=lambda: NO_HEADERS)
    #: What is wrong with a known header; "" if nothing is.
    defect: str = ""

    @property
    def priority(self) -> int:
        """What goes first in a queue that has priorities; 0 where its publisher did not say."""
        found = self.properties.get("priority")
        return found if isinstance(found, int) and not isinstance(found, bool) else 0

    @property
    def attempt(self) -> int:
        """Which run this is, from 1."""
        return (self.retries or 0) + 1

    def waited(self, now: float) -> float | None:
        """Seconds that it has waited since it could have been run; None where it is not known since when."""
        if self.queued_at is None:
            return None
        since = self.queued_at
        if self.run_at is not None and self.run_at > since:
            since = self.run_at
        return now - since if now > since else 0.0

    @property
    def topic(self) -> str:
        """The topic of the event that became this job; "" of any other."""
        found = self.extra.get(TOPIC)
        return found if isinstance(found, str) and isinstance(self.extra.get(EVENT_ID), str) else ""

    @property
    def signed_job(self) -> str:
        """The job that a signature of the body covers; an event has one body for all groups, and covers its topic."""
        return self.topic or self.job

    @property
    def signed_id(self) -> str:
        """The id that a signature of the body covers: all jobs that a recurring one publishes have one body."""
        if self._event:
            return self._event
        name = self.extra.get("recurring")
        return f"{name}@" if isinstance(name, str) and self.id.startswith(f"{name}@") else self.id

    @property
    def _event(self) -> str:
        """The id of the event that became this job, if one did."""
        event = self.extra.get(EVENT_ID)
        return event if isinstance(event, str) and self.id.startswith(f"{event}@") else ""


def made(fields: dict[str, Any]) -> Message:
    """The message with these fields, which are not checked: what every job costs is spent here.

    `properties` and `extra` must be among them; what else is left out has its default. The dict is the message's from
    then on.
    """
    message = object.__new__(Message)
    object.__setattr__(message, "__dict__", fields)
    return message


def to_headers(message: Message) -> dict[str, HeaderValue]:
    """All headers of the message, ready to publish; what only a first publication may carry is left out."""
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
        headers[_ATTEMPTS] = attempts.to_header(message.attempts)
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
    """The message that an AMQP message is. Never raises: what is wrong with it is in `defect`.

    `taken_from` is the queue it was taken from, which wins over its own `queue` header,
    except in `failed`, and where it waits for its time (None): there that header says where it
    belongs. `new_id` makes an id for a message that came without one.
    """
    away = taken_from is None or is_failed(taken_from)
    queue = DEFAULT_QUEUE if taken_from is None or away else taken_from
    fields: dict[str, Any] = {"job": "", "body": body, "content_type": content_type or JSON, "properties": properties}
    extra: dict[str, HeaderValue] = {}
    failure: dict[str, Any] = {}
    defects: list[str] = []
    for name, value in headers.items():
        known = _AS_IT_IS.get(name)
        if known is not None:
            field, kind = known
            if value.__class__ is kind:
                fields[field] = value
                continue
        elif name == "id":
            if isinstance(value, str):
                message_id = message_id or value
                continue
            if message_id:
                continue
        elif name == "queue":
            if isinstance(value, str):
                queue = value if away else queue
                continue
        elif name in _SECONDS:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < MAX_SECONDS:
                fields[_SECONDS[name]] = float(value)
                continue
        elif name == _ATTEMPTS:
            if isinstance(value, list | tuple):
                fields["attempts"] = attempts.from_header(value)
                continue
        elif name in _FAILURE:
            failure[name] = value
            continue
        else:
            extra[name] = value
            continue
        extra[name] = value
        defects.append(f"header {name!r} is {str(value)[:80]!r} ({type(value).__name__}) and must be {_wanted(name)}")
    if extra and "run_at" not in fields:
        fields["run_at"] = _foreign_run_at(extra)
    fields["id"] = message_id or new_id()
    fields["queue"] = queue
    fields["extra"] = extra or NO_HEADERS
    if content_encoding:
        fields["content_encoding"] = content_encoding
    if failure:
        fields["failure"] = _failure_from(failure)
    if defects:
        fields["defect"] = "; ".join(defects)
    return made(fields)


def _wanted(name: str) -> str:
    if name in _NUMBER:
        return "an integer"
    if name in _SECONDS:
        return "a number above 0"
    if name in _TRUTH:
        return "true or false"
    return "a list" if name == _ATTEMPTS else "text"


def _foreign_run_at(headers: Headers) -> float | None:
    found = headers.get(_FOREIGN_RUN_AT)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < MAX_SECONDS:
        return float(found)
    return None


def _failure_from(headers: Mapping[str, HeaderValue]) -> Failure | None:
    """The failure in a message's error headers, however another program wrote them; None without an exception class."""
    if "exception-class" not in headers:
        return None
    failed_at = headers.get("failed-at")
    return Failure(
        exception_class=str(headers["exception-class"]),
        message=str(headers.get("exception-message") or ""),
        stack_trace=str(headers.get("stack-trace") or ""),
        failed_at=failed_at if isinstance(failed_at, int) else 0,
    )


def fit(message: Message, limit: int = MAX_HEADERS) -> Message:
    """The message with its headers cut until they fit one frame.

    First what is kept of earlier errors, then the traceback, then the message, then foreign
    headers that leave no room: these are dropped, largest first, and named in `dropped-headers`.
    Only a message that has failed is cut; a fresh one that does not fit raises HeadersTooLarge,
    since its caller can still mend it.
    """
    size = headers_size(to_headers(message))
    if size <= limit:
        return message
    for budget in (attempts.BUDGET // 8, 0) if message.attempts else ():
        message = replace(message, attempts=attempts.cut(message.attempts, budget))
        if headers_size(to_headers(message)) <= limit:
            return message
    if message.failure is None:
        raise HeadersTooLarge(
            f"the headers of job {message.id} measure {size} bytes and must fit {limit};"
            " put the data into the arguments."
        )
    for stack_trace, text in ((4_000, 2_000), (0, 500)):
        message = replace(message, failure=cut(message.failure, stack_trace=stack_trace, message=text))
        if headers_size(to_headers(message)) <= limit:
            return message
    extra = dict(message.extra)
    dropped: list[str] = []
    for name in sorted(extra, key=lambda name: headers_size({name: extra[name]}), reverse=True):
        del extra[name]
        dropped.append(name)
        message = replace(message, extra=extra | {"dropped-headers": ", ".join(dropped)[:1_000]})
        if headers_size(to_headers(message)) <= limit:
            break
    return message


def headers_size(value: HeaderValue) -> int:
    """At least as many bytes as the value takes in an AMQP field table."""
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
