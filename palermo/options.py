"""The options of a job: which there are, which are planned, and which values they take."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from palermo.core.keys import Mode
from palermo.core.message import MAX_SECONDS
from palermo.core.permits import MAX_LIMIT, Rate, check_key
from palermo.core.retry import Own, backoff
from palermo.core.shares import LEAST_SHARE, MOST_SHARE, is_tenant
from palermo.core.topology import MAX_PRIORITY, check_id, check_job_queue
from palermo.core.unique import ON_DUPLICATE
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
    #: Seconds after which a run that has not ended is killed, and the job runs again.
    lock_for: float | None
    #: Seconds from now, or from when it is due, within which it must be started.
    expires: float | None
    #: How long it waits before it may run: seconds, or a timedelta.
    delay: Delay | None
    #: The same as an instant: Unix seconds, or an aware datetime.
    run_at: Instant | None
    #: What goes first within its queue, from 0 to 9.
    priority: int | None
    #: How many of the job, or with its limit_key, may run at once, over all workers.
    limit: int | None
    #: What the limit and the rate are of, instead of the whole job: text, or a function of the job's arguments.
    limit_key: str | Callable[..., str] | None
    #: How often it may run, over all workers: 50/s, 100/min.
    rate: str | None
    #: How often the job's policy may try it again.
    retries: int | None
    #: Whether what it returns is kept in the journal, for `Job.result`.
    keep_result: bool | None
    #: How long no other job of the same key is enqueued: "until_start", "until_done", or seconds.
    unique: str | float | None
    #: The key, beside the job's name: text, or a function of the job's arguments; else the caller's own id, or the
    #: arguments themselves.
    unique_key: str | Callable[..., str] | None
    #: What a second enqueue of the key does: "return" (answer with the first), "raise", "replace", or "rerun".
    on_duplicate: str | None
    #: Seconds after its end for which the key is still refused.
    dedupe: float | None
    #: Seconds of quiet after which only the last job of a burst is run.
    debounce: float | None
    #: Seconds in which at most one job is run: the first at once, and then the last of those that came.
    throttle: float | None
    #: Whose job it is, so that each tenant of a queue has its share: text of 1 to 255 bytes, or a function of the
    #: job's arguments that gives it.
    tenant: str | Callable[..., str] | None
    #: How much of the queue that tenant is to have, beside others' 1: from 0.001 to 1,000.
    share: float | None


class EnqueueOptions(ManyOptions, total=False):
    """What `.options()` takes, and `enqueue` by name."""

    #: Text of 1 to 255 bytes; a UUID unless given.
    id: str | None


class PublishOptions(TypedDict, total=False):
    """What `palermo.publish` takes; None where the settings decide."""

    #: Text of 1 to 255 bytes; a UUID unless given.
    id: str | None
    serializer: str | None
    compression: str | None
    sign: bool | None


#: Jobs in one batch at most.
MOST_BATCH = 1_000

#: The options of recurring jobs.
CRON = ("cron", "every", "tz", "missed", "schedule_name", "schedule_args")

#: What `@palermo.job` takes.
DECLARABLE = (
    *("queue", "name", "serializer", "compression", "sign", "arguments", "timeout", "expires", "delay", "keep_result"),
    *("tenant", "share", "batch", "batch_wait"),
    *("retries", "backoff", "retry_for", "retry_on", "discard_on"),
    *("lock_for", "priority", "limit", "limit_key", "rate"),
    *("unique", "unique_key", "on_duplicate", "dedupe", "debounce", "throttle"),
    *CRON,
)
#: What `@palermo.subscribe` takes.
SUBSCRIBABLE = ("timeout", "keep_result", "retries", "backoff", "retry_for", "retry_on", "discard_on")
#: What `palermo.publish` takes.
PUBLISHABLE = tuple(PublishOptions.__annotations__)
#: What `.options()` takes.
CALLABLE = ("queue", "id", *(name for name in ManyOptions.__annotations__ if name != "queue"))


def check_options(options: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise for an option that is unknown here, not there yet, or has a value that means nothing."""
    for name, value in options.items():
        match name:
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
            case "unique" if value not in (Mode.START, Mode.DONE) and not _is_duration(value):
                raise OptionInvalid(
                    f'option unique={value!r} means nothing; it is "until_start", "until_done", or seconds above 0.'
                )
            case "unique_key" if not callable(value) and not (isinstance(value, str) and value):
                raise OptionInvalid(f"option unique_key={value!r} is neither text nor a function of the arguments.")
            case "on_duplicate" if value not in ON_DUPLICATE:
                known_ways = ", ".join(ON_DUPLICATE)
                raise OptionInvalid(f"option on_duplicate={value!r} means nothing; it is one of {known_ways}.")
            case "timeout" | "expires" | "retry_for" | "lock_for" | "dedupe" | "debounce" | "throttle" if (
                not _is_duration(value)
            ):
                raise OptionInvalid(f"option {name}={value!r} is no duration; give seconds above 0, such as 30 or 0.5.")
            case "priority" if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PRIORITY:
                raise OptionInvalid(
                    f"option priority={value!r} is not from 0 to {MAX_PRIORITY}; the highest goes first."
                )
            case "limit" if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
                raise OptionInvalid(
                    f"option limit={value!r} is not from 1 to {MAX_LIMIT:,}: it says how many run at once."
                )
            case "limit_key" if not callable(value):
                check_key(value)
            case "rate":
                Rate.parse(value)
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
