"""Reads the values of a job's options. Imported when the first option is given, since it needs many modules."""

from typing import Any

from palermo.core.backoff import CustomBackoff, backoff
from palermo.core.fair_scheduling import LEAST_SHARE, MOST_SHARE, is_tenant
from palermo.core.limits import MAX_LIMIT, Rate, check_key
from palermo.core.message import MAX_SECONDS
from palermo.core.own_headers import check_own_headers
from palermo.core.times import delay_seconds, in_seconds, unix_seconds
from palermo.core.topology import MAX_PRIORITY
from palermo.core.unique_keys import Mode
from palermo.core.unique_rules import ON_DUPLICATE
from palermo.errors import OptionInvalid
from palermo.jobs.batch import MOST_BATCH
from palermo.jobs.definition import signature_of

#: The options that are durations. `every` and `backoff` are read with the recurring job and the retry policy.
_DURATIONS = frozenset(
    ("timeout", "lock_for", "expires", "delay", "batch_wait", "retry_for", "unique", "dedupe", "debounce", "throttle")
)


def read_value(name: str, value: Any) -> Any:
    """The value of the option of this name; a duration in seconds. Raises OptionInvalid if it means nothing."""
    if name == "headers":
        return check_own_headers(value)
    _check_value(name, value)
    return in_seconds(value) if name in _DURATIONS else value


def _check_value(name: str, value: Any) -> None:
    match name:
        case "serializer" | "compression" if not isinstance(value, str):
            raise OptionInvalid(f"option {name}={value!r} is not text; give the name of a {name}, such as 'json'.")
        case "sign" | "keep_result" | "default" if not isinstance(value, bool):
            raise OptionInvalid(f"option {name}={value!r} is neither True nor False.")
        case "unique" if value not in (Mode.START, Mode.DONE) and not _is_duration(value):
            raise OptionInvalid(
                f'option unique={value!r} means nothing; it is "until_start", "until_done", seconds above 0,'
                " or a timedelta."
            )
        case "unique_key" if not callable(value) and not (isinstance(value, str) and value):
            raise OptionInvalid(f"option unique_key={value!r} is neither text nor a function of the arguments.")
        case "on_duplicate" if value not in ON_DUPLICATE:
            known_ways = ", ".join(ON_DUPLICATE)
            raise OptionInvalid(f"option on_duplicate={value!r} means nothing; it is one of {known_ways}.")
        case "timeout" | "expires" | "retry_for" | "lock_for" | "dedupe" | "debounce" | "throttle" if not _is_duration(
            value
        ):
            raise OptionInvalid(
                f"option {name}={value!r} is no duration; give seconds above 0, such as 30, or a timedelta."
            )
        case "priority" if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PRIORITY:
            raise OptionInvalid(f"option priority={value!r} is not from 0 to {MAX_PRIORITY}; the highest goes first.")
        case "limit" if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
            raise OptionInvalid(f"option limit={value!r} is not from 1 to {MAX_LIMIT:,}: it says how many run at once.")
        case "limit_key" if not callable(value):
            check_key(value)
        case "rate":
            Rate.parse(value)
        case "delay":
            delay_seconds(value)
        case "run_at":
            unix_seconds(value)
        case "retries" if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise OptionInvalid(f"option retries={value!r} is no count; give a whole number, from 0 on.")
        case "tenant" if not callable(value) and not is_tenant(value):
            raise OptionInvalid(
                f"option tenant={value!r} names nobody; give text of 1 to 255 bytes without blanks at its ends,"
                " or a function of the job's arguments."
            )
        case "batch" if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_BATCH:
            raise OptionInvalid(f"option batch={value!r} is no size; give a whole number from 1 to {MOST_BATCH:,}.")
        case "batch_wait" if in_seconds(value) != 0 and not _is_duration(value):
            raise OptionInvalid(
                f"option batch_wait={value!r} is no duration; give seconds from 0 on, such as 0.2, or a timedelta."
            )
        case "share" if not _is_share(value):
            raise OptionInvalid(
                f"option share={value!r} is none; give a number from {LEAST_SHARE:g} to {MOST_SHARE:,.0f}."
            )
        case "backoff":
            _check_backoff(value)
        case "retry_on" | "discard_on" if not _are_errors(value):
            raise OptionInvalid(f"option {name}={value!r} is neither an exception class nor a tuple of such.")
        case "arguments" if value not in ("", "one"):
            raise OptionInvalid(f'option arguments={value!r} means nothing; it may be "one", or left out.')


def _check_backoff(value: object) -> None:
    match backoff(value):
        case CustomBackoff(function):
            try:
                signature = signature_of(function)
            except (TypeError, ValueError):  # written in C
                return
            try:
                signature.bind(1, ValueError())
            except TypeError as error:
                raise OptionInvalid(
                    f"backoff={value!r} cannot be called with the attempt, from 1, and the error: {error}."
                ) from None


def _are_errors(value: object) -> bool:
    classes = value if isinstance(value, tuple | list) else (value,)
    return bool(classes) and all(isinstance(one, type) and issubclass(one, BaseException) for one in classes)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST_SHARE <= value <= MOST_SHARE


def _is_duration(value: Any) -> bool:
    seconds: Any = in_seconds(value)
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < MAX_SECONDS / 2
