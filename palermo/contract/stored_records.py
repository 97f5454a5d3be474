"""Records that a broker stores as JSON: one that cannot be read is passed over, and stops nothing else.

Another program, a person, a later version or a fault of a disk may have written anything.
"""

import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from msgspec import Meta, convert

from palermo.core.message import MAX_SECONDS
from palermo.errors import PalermoError

log = logging.getLogger("palermo.broker")

T = TypeVar("T")

#: Unix seconds that a date can show.
Instant = Annotated[float, Meta(ge=0, lt=MAX_SECONDS)]

#: What reading a record raises if it is not what was written. ValueError includes bad JSON, bad UTF-8 and msgspec's.
UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, PalermoError)


def read_record(read: Callable[[Any], T], stored: Any, *, what: str, name: object, remedy: str) -> T | None:
    """What `read` makes of the JSON value in a stored text; None, with one warning, if it cannot.

    `what` is the kind of record and `name` its own, for the warning; `remedy` says what a user does about it.
    """
    try:
        return read(json.loads(stored))
    except UNREADABLE as error:
        warn_unreadable(what, _text(name), f"{error!r:.200}", remedy, f"{stored!r:.200}")
        return None


@lru_cache(maxsize=1_000)
def warn_unreadable(what: str, name: str, error: str, remedy: str, stored: str) -> None:
    """Warn of a record that is passed over: once for each, since some are read all the time."""
    log.warning(
        "%s cannot be read and is passed over; %s name=%r error=%s stored=%s", what, remedy, name, error, stored
    )


def instant(value: Any) -> float:
    """A value as Unix seconds. Raises ValueError or TypeError if no date can show it."""
    return convert(float(value), Instant)


def _text(name: object) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
