"""Records that a broker stores as JSON. An unreadable record is skipped, and stops nothing else.

Another program, a person, a later version or a disk error may have written anything.
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

#: Errors of reading an invalid record. ValueError includes bad JSON, bad UTF-8 and msgspec's errors.
UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, PalermoError)


def read_record(read: Callable[[Any], T], stored: Any, *, what: str, name: object, remedy: str) -> T | None:
    """The result of `read` for the JSON value in a stored text; None, with one warning, if it cannot be read.

    `what` is the kind of record and `name` its own, for the warning; `remedy` says how the user can fix it.
    """
    try:
        return read(json.loads(stored))
    except UNREADABLE as error:
        warn_unreadable(what, _text(name), f"{error!r:.200}", remedy, f"{stored!r:.200}")
        return None


@lru_cache(maxsize=1_000)
def warn_unreadable(what: str, name: str, error: str, remedy: str, stored: str) -> None:
    """Warn about a skipped record, once for each, since some are read all the time."""
    log.warning("cannot read %s, ignoring it: %s name=%r error=%s stored=%s", what, remedy, name, error, stored)


def instant(value: Any) -> float:
    """A value as Unix seconds. Raises ValueError or TypeError if it is outside the calendar."""
    return convert(float(value), Instant)


def _text(name: object) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
