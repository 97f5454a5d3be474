"""Records that a broker stores as JSON. An unreadable record is skipped.

It may come from another program, an operator, a later version or a disk error.
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

#: Unix seconds in the calendar's range.
Instant = Annotated[float, Meta(ge=0, lt=MAX_SECONDS)]

#: Errors of reading an invalid record. ValueError includes invalid JSON and UTF-8, and msgspec's errors.
UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, PalermoError)


def read_record(read: Callable[[Any], T], stored: Any, *, what: str, name: object, remedy: str) -> T | None:
    """Read a JSON record with `read`; None, with one warning, if it can't be read.

    The warning contains `what`, the kind of record, its `name`, and `remedy`, the advice for the user.
    """
    try:
        return read(json.loads(stored))
    except UNREADABLE as error:
        warn_unreadable(what, _text(name), f"{error!r:.200}", remedy, f"{stored!r:.200}")
        return None


@lru_cache(maxsize=1_000)
def warn_unreadable(what: str, name: str, error: str, remedy: str, stored: str) -> None:
    """Warn about a skipped record, once for each record, because some are read repeatedly."""
    log.warning("cannot read %s, ignoring it: %s name=%r error=%s stored=%s", what, remedy, name, error, stored)


def instant(value: Any) -> float:
    """A value as Unix seconds. Raises ValueError or TypeError if it is outside the calendar."""
    return convert(float(value), Instant)


def _text(name: object) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
