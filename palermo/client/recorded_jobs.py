"""A job's arguments and options as recorded in the journal.

Records are redacted by `web_redact`, and limited by `journal_arguments`. If a record doesn't contain the exact
arguments, `inexact` says why: SHORTENED, HIDDEN, CONVERTED or UNREADABLE.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from palermo.contract.rows import arguments_of, as_json
from palermo.core.arguments import BOTH, preview
from palermo.core.due_times import FOREIGN
from palermo.core.limits import RESERVATION
from palermo.core.message import HEADER_OF, JSON, MAX_SECONDS, OPTION_FIELDS, Message, from_wire
from palermo.jobs import redaction
from palermo.jobs.redaction import MASK, is_hidden, masked_arguments, masked_row

if TYPE_CHECKING:
    from palermo.contract.serialization import Serializers
    from palermo.settings.settings import Settings

#: Why a record doesn't contain the exact arguments: they exceeded `journal_arguments`, some are hidden, they were not
#: serialized as JSON, or reading them would run untrusted code. Readers add EDITED if a user has changed them since.
SHORTENED, HIDDEN, CONVERTED, UNREADABLE = "shortened", "hidden", "converted", "unreadable"
EDITED = "edited"

#: The record fields created by `RecordedArguments.fields`.
FIELDS = frozenset(
    {"body", "arguments", "headers", "priority", "inexact", "preview", "content_type", "size", "expires"}
)

#: The recorded options by field, without headers that apply to only one run or publish.
_OPTIONS = tuple((field, HEADER_OF[field][0]) for field in OPTION_FIELDS.values())
_optional = attrgetter(*(name for name, _ in _OPTIONS), "expires_at")
_NOTHING_OPTIONAL = _optional(Message(id="", queue="", job=""))
_OF_ONE_RUN = frozenset({RESERVATION, FOREIGN, "traceparent", "tracestate", "baggage"})

#: Maximum size of the recorded headers in bytes.
_MAX_HEADERS = 4_000

#: Number of characters of the arguments that a search reads.
MAX_SEARCHED = 500


class HiddenSigns:
    """A quick test whether arguments may contain a hidden value, by parts of hidden names."""

    def __init__(
        self, patterns: Sequence[str], names: Callable[[str], Sequence[str] | None] = redaction.parameters
    ) -> None:
        """`names` returns the parameter names of a job whose code is known."""
        self._patterns = tuple(patterns)
        self._names = names
        #: The longest literal part of each pattern, and the start of JSON escapes. A text that contains none of them
        #: has no hidden name.
        literal = (max(re.split(r"[*?]|\[[^]]*\]", pattern.casefold()), key=len) for pattern in self._patterns)
        self._signs = (b"\\u", *(word.encode() for word in literal)) if self._patterns else ()

    def may_hide(self, job: str, lower: bytes) -> bool:
        """Whether these arguments may contain a hidden name. `lower` is ASCII JSON in lower case."""
        for sign in self._signs:
            if sign in lower:
                return True
        return any(is_hidden(name, self._patterns) for name in self._names(job) or ())


class RecordedArguments:
    """Creates the record fields of a job's arguments and options."""

    def __init__(
        self, settings: "Settings", parameters: Callable[[str], Sequence[str] | None] = redaction.parameters
    ) -> None:
        """`parameters` returns the parameter names of a job whose code is known."""
        self._settings = settings
        self._parameters = parameters
        self._most = settings.journal_arguments
        self._patterns: tuple[str, ...] = settings.web_redact
        self._signs = HiddenSigns(self._patterns, parameters)

    def fields(self, message: Message) -> dict[str, Any]:
        """Return the fields for the record of a job's enqueue or end."""
        most, body = self._most, message.body
        if not most:
            return {}
        plain = len(body) <= most and message.content_type == JSON and not message.content_encoding
        # Fast path: nearly all arguments are short JSON without a hidden name. 1,045 bytes take 7 µs, and 93 µs
        # without.
        if plain and body.isascii() and not self._signs.may_hide(message.job, body.lower()):
            record = {"body": body.decode()}
        else:
            record = self._decoded(message)
        if message.arguments and "body" in record and "inexact" not in record:
            record["arguments"] = message.arguments
        if message.extra or message.properties or _optional(message) != _NOTHING_OPTIONAL:
            record |= self._options(message)
        return record

    def _decoded(self, message: Message) -> dict[str, Any]:
        if len(message.body) > self._most:
            return self._preview(message, SHORTENED) | {"size": len(message.body)}
        found = arguments_of(message, self._settings.serializers(), max_bytes=max(self._most, 1))
        if found is None:
            return self._preview(message, UNREADABLE)
        bare = {"job": message.job, "args": as_json(found[0]), "kwargs": as_json(found[1])}
        shown = masked_arguments(bare, self._patterns, self._parameters(message.job) or ())
        as_it_is = message.content_type == JSON and not message.content_encoding
        if as_it_is and shown == bare:
            return {"body": message.body.decode()}
        # The body of an event is just its payload.
        value = shown["args"][0] if message.topic else {"args": shown["args"], "kwargs": shown["kwargs"]}
        text = json.dumps(value)
        if len(text) > 2 * self._most:  # they were compressed
            return self._preview(message, SHORTENED) | {"size": len(message.body)}
        record = {"body": text, "inexact": CONVERTED if shown == bare else HIDDEN}
        record |= {} if message.topic else {"arguments": BOTH}
        return record if as_it_is else {**record, "content_type": message.content_type}

    def _preview(self, message: Message, inexact: str) -> dict[str, Any]:
        row = {"job": message.job, "args": None, "kwargs": None, "preview": message.preview}
        record = {
            "inexact": inexact,
            "preview": masked_row(row, self._patterns, self._parameters(message.job) or ())["preview"] or "",
        }
        return record if message.content_type == JSON else {**record, "content_type": message.content_type}

    def _options(self, message: Message) -> dict[str, Any]:
        record: dict[str, Any] = {}
        headers: dict[str, Any] = {}
        for name, header in _OPTIONS:
            value = getattr(message, name)
            if value is not None and value != "":
                headers[header] = value
        if message.extra:
            headers |= {
                name: MASK if is_hidden(name, self._patterns) and name not in _KEYS else as_json(value)
                for name, value in message.extra.items()
                if name not in _OF_ONE_RUN
            }
        if headers and len(json.dumps(headers)) <= _MAX_HEADERS:
            record["headers"] = headers
        if message.properties and message.priority:
            record["priority"] = message.priority
        if message.expires_at is not None:
            start = max(message.run_at or 0.0, message.queued_at or message.created_at or 0.0)
            record["expires"] = round(max(1.0, message.expires_at - start), 3)
        return record


#: Palermo's own headers with names that resemble secrets.
_KEYS = frozenset({"unique-key", "burst-key", "limit-key"})


class RecordedJob(Struct, frozen=True):
    #: Its message, without a body if the record contains none.
    message: Message
    #: Why the arguments are not exact; "" if they are.
    inexact: str = ""
    #: The size in bytes of arguments that were too long to record.
    size: int | None = None
    #: The media type of its arguments. The message has none if they were recorded as JSON.
    content_type: str = JSON
    #: Seconds within which the job had to start; None for no limit.
    expires: float | None = None

    @property
    def readable(self) -> bool:
        """Whether the record contains the arguments and not only a preview."""
        return self.inexact not in (SHORTENED, UNREADABLE)


def has_arguments(fields: Mapping[str, Any]) -> bool:
    return "body" in fields or "inexact" in fields


def read_recorded(id: str, job: str, queue: str, fields: Mapping[str, Any]) -> RecordedJob:
    """Return the job of a record, from its id, name, queue and the fields of RecordedArguments."""
    body, inexact, size = fields.get("body"), fields.get("inexact"), fields.get("size")
    text = body if isinstance(body, str) else ""
    arguments = fields.get("arguments")
    given = fields.get("headers")
    headers = {name: value for name, value in given.items() if value != MASK} if isinstance(given, dict) else {}
    headers |= {"job-class": job, "queue": queue}
    if isinstance(arguments, str):
        headers["arguments"] = arguments
    if isinstance(preview := fields.get("preview"), str):
        headers["preview"] = preview
    priority, kind = fields.get("priority"), fields.get("content_type")
    message = from_wire(
        message_id=id,
        content_type=kind if isinstance(kind, str) and not text else None,
        content_encoding=None,
        headers=headers,
        body=text.encode(),
        taken_from=None,
        new_id=lambda: id,
        properties={"priority": priority} if isinstance(priority, int) and 0 < priority < 256 else {},
    )
    why = inexact if isinstance(inexact, str) else "" if isinstance(body, str) else UNREADABLE
    expires = fields.get("expires")
    return RecordedJob(
        message,
        why,
        size=size if isinstance(size, int) else None,
        content_type=kind if isinstance(kind, str) else JSON,
        expires=float(expires) if isinstance(expires, int | float) and 0 < expires < MAX_SECONDS else None,
    )


class SearchedArguments:
    """The recorded arguments of jobs as text for searches, without hidden values."""

    def __init__(self, serializers: "Serializers", hidden: Sequence[str]) -> None:
        """`hidden` are the patterns of hidden names."""
        self._serializers = serializers
        self._hidden = tuple(hidden)
        self._signs = HiddenSigns(self._hidden)

    def text(self, id: str, job: str, queue: str, fields: Mapping[str, Any]) -> str | None:
        """Return the text of the recorded arguments, or None if there are none."""
        body = fields.get("body")
        # Fast path, called a million times for an index of a million jobs. A body of 100 bytes takes 1 µs, and 30 µs if
        # decoded and masked.
        if body.__class__ is str and body.isascii() and not self._signs.may_hide(job, body.lower().encode()):
            plain: str = body
            return plain[:MAX_SEARCHED]
        if not has_arguments(fields):
            return None
        recorded = read_recorded(id, job, queue, fields)
        found = arguments_of(recorded.message, self._serializers) if recorded.readable else None
        args, kwargs = (None, None) if found is None else found
        bare = recorded.message.preview if found is None else preview(found[0], found[1])
        row = {"job": job, "args": as_json(args), "kwargs": as_json(kwargs), "preview": bare}
        text: str | None = masked_row(row, self._hidden)["preview"]
        return text and text[:MAX_SEARCHED]
