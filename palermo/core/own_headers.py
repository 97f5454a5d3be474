"""Headers of one's own: those that a program gives its jobs, beside those that Palermo writes and reads.

They travel unchanged through retries, failure and requeues, as all headers do that Palermo does not know
(docs/internals/wire.md).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from palermo.core.due_times import FOREIGN
from palermo.core.limits import LIMIT, LIMIT_KEY, RATE, RESERVATION
from palermo.core.message import EVENT_ID, KNOWN_HEADERS, PARENT, TOPIC, Headers
from palermo.core.unique_keys import BURST_KEY, LINGER, UNIQUE, UNIQUE_KEY
from palermo.core.workflow import GENERATION, OUTPUT, PATH, WORKFLOW
from palermo.errors import OptionInvalid

#: The value of a header of one's own.
OwnHeader = str | int | float | bool

#: The headers that Palermo writes, in lower case: no program gives them to a job.
RESERVED = KNOWN_HEADERS | {
    *(TOPIC, EVENT_ID, PARENT, "recurring", "tick", FOREIGN, "dropped-headers", "unreadable-headers"),
    *(UNIQUE, UNIQUE_KEY, LINGER, BURST_KEY, LIMIT, LIMIT_KEY, RATE, RESERVATION),
    *(WORKFLOW, PATH, GENERATION, OUTPUT),
    *("traceparent", "tracestate", "baggage", "cc", "bcc"),
}

#: The beginnings of the headers that RabbitMQ writes, in lower case.
_OF_RABBITMQ = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")

#: The most bytes of a name.
MAX_NAME = 128

#: The most characters of all headers of one job together, as JSON: the journal's record of a job has room for them.
MAX_OWN_HEADERS = 2_000

#: The whole numbers that a header can hold are below this.
_TOO_LARGE = 2**63


def check_own_headers(given: object) -> dict[str, OwnHeader]:
    """The headers that a program gives a job. Raises OptionInvalid unless they can travel with it."""
    if not isinstance(given, Mapping):
        raise OptionInvalid(f"option headers={given!r} is not a dict of names and values.")
    for name, value in given.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME:
            raise OptionInvalid(f"the name of header {name!r} must be 1 to {MAX_NAME} bytes of printable text.")
        if is_reserved(name):
            raise OptionInvalid(f"header {name!r} is reserved for Palermo or RabbitMQ. Choose another name.")
        if not _can_travel(value):
            raise OptionInvalid(
                f"header {name!r} is {value!r:.80}, of type {type(value).__name__}; give text, a number or a bool."
            )
    found = dict(given)
    if (size := len(json.dumps(found))) > MAX_OWN_HEADERS:
        raise OptionInvalid(
            f"the headers have {size:,} characters as JSON; a job can carry at most {MAX_OWN_HEADERS:,}. Give larger"
            " values as arguments."
        )
    return found


def is_reserved(name: str) -> bool:
    """Whether Palermo or RabbitMQ uses a header of this name itself."""
    lower = name.lower()
    return lower in RESERVED or lower.startswith(_OF_RABBITMQ)


def own_headers(headers: Headers) -> dict[str, Any]:
    """Those of a message's headers that are neither Palermo's nor RabbitMQ's."""
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
