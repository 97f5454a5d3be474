"""Custom headers, which a program adds to its jobs besides those of Palermo.

They travel unchanged through retries, failure and requeues, like all headers unknown to Palermo
(docs/internals/wire.md).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from palermo.core.due_times import FOREIGN
from palermo.core.limits import LIMIT, LIMIT_KEY, RATE, RESERVATION
from palermo.core.message import EVENT_ID, KNOWN_HEADERS, PARENT, PUBLISHED_AGAIN, TOPIC, Headers
from palermo.core.unique_keys import BURST_KEY, LINGER, UNIQUE, UNIQUE_KEY
from palermo.core.workflow import GENERATION, OUTPUT, PATH, WORKFLOW
from palermo.errors import OptionInvalid

#: The value of a custom header.
OwnHeader = str | int | float | bool

#: The headers that Palermo writes, in lower case: programs must not set them.
RESERVED = KNOWN_HEADERS | {
    *(TOPIC, EVENT_ID, PARENT, PUBLISHED_AGAIN, "recurring", "tick", FOREIGN, "dropped-headers", "unreadable-headers"),
    *(UNIQUE, UNIQUE_KEY, LINGER, BURST_KEY, LIMIT, LIMIT_KEY, RATE, RESERVATION),
    *(WORKFLOW, PATH, GENERATION, OUTPUT),
    *("traceparent", "tracestate", "baggage", "cc", "bcc"),
}

#: Prefixes of the headers that RabbitMQ writes, in lower case.
_OF_RABBITMQ = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")

#: Maximum size of a name in bytes.
MAX_NAME = 128

#: Maximum size of all custom headers of a job in characters of JSON, so that the journal's record has room for them.
MAX_OWN_HEADERS = 2_000

#: Upper bound of integers in a header.
_TOO_LARGE = 2**63


def check_own_headers(given: object) -> dict[str, OwnHeader]:
    """Return a job's custom headers. Raises OptionInvalid if they can't be sent with it."""
    if not isinstance(given, Mapping):
        raise OptionInvalid(f"option headers={given!r} is not a dict of names and values.")
    for name, value in given.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME:
            raise OptionInvalid(f"header name {name!r} must be 1 to {MAX_NAME} bytes of printable text.")
        if is_reserved(name):
            raise OptionInvalid(f"header {name!r} is reserved for Palermo or RabbitMQ. Choose another name.")
        if not _can_travel(value):
            raise OptionInvalid(
                f"header {name!r} is {value!r:.80}, of type {type(value).__name__}; give text, a number or a bool."
            )
    found = dict(given)
    if (size := len(json.dumps(found))) > MAX_OWN_HEADERS:
        raise OptionInvalid(
            f"the headers have {size:,} characters as JSON; the maximum is {MAX_OWN_HEADERS:,}. Pass larger values"
            " as arguments."
        )
    return found


def is_reserved(name: str) -> bool:
    """Whether Palermo or RabbitMQ uses a header of this name."""
    lower = name.lower()
    return lower in RESERVED or lower.startswith(_OF_RABBITMQ)


def own_headers(headers: Headers) -> dict[str, Any]:
    """The headers of a message that are neither Palermo's nor RabbitMQ's."""
    return {name: value for name, value in headers.items() if not is_reserved(name)} if headers else {}


def _can_travel(value: object) -> bool:
    match value:
        case bool() | str():
            return True
        case int():
            return -_TOO_LARGE <= value < _TOO_LARGE
        case float():
            return math.isfinite(value)
        case _:
            return False
