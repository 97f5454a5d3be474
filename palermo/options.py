"""The options of a job: which there are, which are planned, and which values they take."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from palermo.core.message import MAX_SECONDS
from palermo.core.retry import Own, backoff
from palermo.core.shares import LEAST_SHARE, MOST_SHARE, is_tenant
from palermo.core.topology import check_id, check_job_queue
from palermo.errors import OptionInvalid
from palermo.moments import Delay, Instant, instant, seconds
from palermo.registry import nearest


class ManyOptions(TypedDict, total=False):
    """What enqueue_many takes; None where the job's own declaration decides."""

    queue: str | None
    serializer: str | None
    compression: str | None
    sign: bool | None
    #: Seconds that one run may take.
    timeout: float | None
    #: Seconds from now, or from when it is due, within which it must be started.
    expires: float | None
    #: How long it waits before it may run: seconds, or a timedelta.
    delay: Delay | None
    #: The same as an instant: Unix seconds, or an aware datetime.
    run_at: Instant | None
    #: How often the job's policy may try it again.
    retries: int | None
    #: Whether what it returns is kept in the journal, for `Job.result`.
    keep_result: bool | None
    #: Whose job it is, so that each tenant of a queue has its share: text of 1 to 255 bytes, or a function of the
    #: job's arguments that gives it.
    tenant: str | Callable[..., str] | None
    #: How much of the queue that tenant is to have, beside others' 1: from 0.001 to 1,000.
    share: float | None


class EnqueueOptions(ManyOptions, total=False):
    """What `.options()` takes, and `enqueue` by name."""

    #: Text of 1 to 255 bytes; a UUID unless given.
    id: str | None


#: Jobs in one batch at most.
MOST_BATCH = 1_000

#: The options of recurring jobs.
CRON = ("cron", "every", "tz", "missed", "schedule_name", "schedule_args")

#: What `@palermo.job` takes.
DECLARABLE = (
    *("queue", "name", "serializer", "compression", "sign", "arguments", "timeout", "expires", "delay", "keep_result"),
    *("tenant", "share", "batch", "batch_wait"),
    *("retries", "backoff", "retry_for", "retry_on", "discard_on"),
    *CRON,
)
#: What `.options()` takes.
CALLABLE = ("queue", "id", *(name for name in ManyOptions.__annotations__ if name != "queue"))

#: Options that are planned, and what they will do; refused by name until they do it.
LATER = {
    "unique": "unique jobs",
    "unique_key": "unique jobs",
    "on_duplicate": "unique jobs",
    "debounce": "unique jobs",
    "limit": "limits on what runs at once",
    "limit_key": "limits on what runs at once",
    "rate": "limits on what runs at once",
    "priority": "priorities within a queue",
}


def check_options(options: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise for an option that is unknown here, not there yet, or has a value that means nothing."""
    for name, value in options.items():
        match name:
            case _ if name in LATER:
                raise OptionInvalid(f"option {name!r} is not there yet: {LATER[name]} come with a later version.")
            case _ if name not in known:
                raise OptionInvalid(
                    f"{where} has no option {name!r}.{nearest(name, known)} It takes {', '.join(known)};"
                    " the job's own arguments go to enqueue."
                )
            case _ if value is None:
                pass
            case "queue":
                check_job_queue(value)
            case "id":
                check_id(value)
            case "serializer" | "compression" if not isinstance(value, str):
                raise OptionInvalid(f"option {name}={value!r} is not text; give the name of a {name}, such as 'json'.")
            case "sign" | "keep_result" if not isinstance(value, bool):
                raise OptionInvalid(f"option {name}={value!r} is neither True nor False.")
            case "timeout" | "expires" | "retry_for" if not _is_duration(value):
                raise OptionInvalid(f"option {name}={value!r} is no duration; give seconds above 0, such as 30 or 0.5.")
            case "delay":
                seconds(value)
            case "run_at":
                instant(value)
            case "retries" if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
                raise OptionInvalid(f"option retries={value!r} is no count; give a whole number, from 0 on.")
            case "tenant" if not callable(value) and not is_tenant(value):
                raise OptionInvalid(
                    f"option tenant={value!r} names nobody; give text of 1 to 255 bytes without blanks at its ends,"
                    " or a function of the job's arguments."
                )
            case "batch" if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_BATCH:
                raise OptionInvalid(f"option batch={value!r} is no size; give a whole number from 1 to {MOST_BATCH:,}.")
            case "batch_wait" if value != 0 and not _is_duration(value):
                raise OptionInvalid(f"option batch_wait={value!r} is no duration; give seconds from 0 on, such as 0.2.")
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
        case Own(function):
            try:
                signature = inspect.signature(function)
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


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_SECONDS / 2
