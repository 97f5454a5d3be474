"""The options of a job: their names and types. jobs/option_values.py checks their values."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from palermo.core.text import nearest
from palermo.core.times import Duration, Instant
from palermo.core.topology import check_id, check_new_queue
from palermo.errors import ArgumentsInvalid, OptionInvalid
from palermo.jobs.definition import JobDefinition

if TYPE_CHECKING:
    from palermo.contract.recurring import RecurringJob
    from palermo.core.retry_policy import ErrorTypes

#: The names that options take; jobs/option_values.py and core/backoff.py check them.
Unique = Literal["until_start", "until_done"]
OnDuplicate = Literal["return", "raise", "replace", "rerun"]
BackoffName = Literal["exponential", "linear", "fixed"]
Missed = Literal["skip", "once", "all"]

#: A name, a duration, several one after the other, a shape such as palermo.Exponential, or a function of one's own.
BackoffOption = BackoffName | Duration | Sequence[Duration] | Callable[..., Any]


class ManyOptions(TypedDict, total=False):
    """The options of enqueue_many; None where the job's own declaration decides."""

    queue: str | None
    serializer: str | None
    compression: str | None
    sign: bool | None
    #: How long one run may take: seconds or a timedelta, here and wherever an option is a duration.
    timeout: Duration | None
    #: After how long a run that has not ended is killed, and the job runs again.
    lock_for: Duration | None
    #: Within how long from now, or from when the job is due, it must be started.
    expires: Duration | None
    #: How long it waits before it may run.
    delay: Duration | None
    #: The same as an instant: Unix seconds, or an aware datetime.
    run_at: Instant | None
    #: Decides what goes first within its queue, from 0 to 9; the highest goes first.
    priority: int | None
    #: How many of the job, or of one limit_key, may run at once, over all workers.
    limit: int | None
    #: What the limit and the rate count, instead of the whole job: text, or a function of the job's arguments.
    limit_key: str | Callable[..., str] | None
    #: How often it may run, over all workers: 50/s, 100/min.
    rate: str | None
    #: How often the job's policy may try it again.
    retries: int | None
    #: Whether what it returns is kept in the journal, for `Job.result`.
    keep_result: bool | None
    #: How long no other job of the same key is enqueued: "until_start", "until_done", or a duration.
    unique: Unique | Duration | None
    #: The key, besides the job's name: text, or a function of the job's arguments. Unless given, it is the caller's own
    #: id, or the arguments themselves.
    unique_key: str | Callable[..., str] | None
    #: What a second enqueue of the key does: "return" (answer with the first), "raise", "replace", or "rerun".
    on_duplicate: OnDuplicate | None
    #: For how long after the job's end the key is still refused.
    dedupe: Duration | None
    #: After how long a quiet only the last job of a burst is run.
    debounce: Duration | None
    #: In how long a time at most one job runs: the first at once, and then the last of those that came.
    throttle: Duration | None
    #: The tenant whose job it is, so that each tenant of a queue has its share: text of 1 to 255 bytes, or a function
    #: of the job's arguments that returns it.
    tenant: str | Callable[..., str] | None
    #: The tenant's share of the queue, where others have 1: from 0.001 to 1,000.
    share: float | None
    #: Headers of your own that travel with the job, such as the id of a request: text, numbers and bools. Together at
    #: most 2,000 characters as JSON.
    headers: Mapping[str, str | int | float | bool] | None


class EnqueueOptions(ManyOptions, total=False):
    """The options of `.options()`, and of `enqueue` by name."""

    #: Text of 1 to 255 bytes; a UUID unless given.
    id: str | None


class RunOptions(TypedDict, total=False):
    """The options of a run, whatever declares the job; None where the settings decide."""

    timeout: Duration | None
    retries: int | None
    backoff: BackoffOption | None
    retry_for: Duration | None
    retry_on: "ErrorTypes | None"
    discard_on: "ErrorTypes | None"


class SubscribeOptions(RunOptions, total=False):
    """The options of `@palermo.subscribe`: those of a job that concern its run."""

    keep_result: bool | None


class _RecurringOptions(TypedDict, total=False):
    cron: str | None
    every: Duration | None
    tz: str | None
    missed: Missed | None
    schedule_name: str | None
    schedule_args: "Arguments | None"


class _DeclaredOptions(RunOptions, _RecurringOptions, total=False):
    """The options of `@palermo.job`, with `batch` and without."""

    queue: str | None
    name: str | None
    serializer: str | None
    compression: str | None
    sign: bool | None
    arguments: Literal["", "one"]
    priority: int | None
    expires: Duration | None
    delay: Duration | None
    unique_key: str | Callable[..., str] | None
    debounce: Duration | None
    throttle: Duration | None
    tenant: str | Callable[..., str] | None
    share: float | None


class BatchOptions(_DeclaredOptions, total=False):
    """The options of `@palermo.job` for a job that is called with a list."""

    batch: Required[int]
    batch_wait: Duration | None


class JobOptions(_DeclaredOptions, total=False):
    """The options of `@palermo.job` for a job that is called once for each message."""

    lock_for: Duration | None
    limit: int | None
    limit_key: str | Callable[..., str] | None
    rate: str | None
    keep_result: bool | None
    unique: Unique | Duration | None
    on_duplicate: OnDuplicate | None
    dedupe: Duration | None
    default: bool


class PublishOptions(TypedDict, total=False):
    """The options of `palermo.publish`; None where the settings decide."""

    #: Text of 1 to 255 bytes; a UUID unless given.
    id: str | None
    serializer: str | None
    compression: str | None
    sign: bool | None


#: One call's arguments for enqueue_many: positional in a tuple or list, named in a dict.
Arguments = tuple[Any, ...] | list[Any] | Mapping[str, Any]

#: The options of recurring jobs.
RECURRING_OPTIONS = tuple(_RecurringOptions.__annotations__)
#: The options of `@palermo.job`.
JOB_OPTIONS = tuple(JobOptions.__annotations__ | BatchOptions.__annotations__)
#: The options of `@palermo.subscribe`.
SUBSCRIBE_OPTIONS = tuple(SubscribeOptions.__annotations__)
#: The options of `palermo.publish`.
PUBLISH_OPTIONS = tuple(PublishOptions.__annotations__)
#: The options of `.options()`.
ENQUEUE_OPTIONS = ("queue", "id", *(name for name in ManyOptions.__annotations__ if name != "queue"))


#: Options of Celery, Dramatiq, RQ and Sidekiq, whose names look like those of options that do something else.
_ELSEWHERE = {
    "autoretry_for": "retry_on",
    "countdown": "delay",
    "eta": "run_at",
    "job_id": "id",
    "job_timeout": "timeout",
    "max_age": "expires",
    "rate_limit": "rate",
    "result_ttl": "keep_result",
    "retry": "retries",
    "retry_backoff": "backoff",
    "soft_time_limit": "timeout",
    "task_id": "id",
    "throws": "discard_on",
    "time_limit": "timeout",
    "ttl": "expires",
    "unique_for": "unique",
}


def read_options(options: Mapping[str, Any], known: tuple[str, ...], where: str) -> dict[str, Any]:
    """The options that are given, without those that are None; durations are in seconds.

    Raises OptionInvalid for an option that is unknown here, or that has a value without meaning, and QueueNameInvalid
    and IdInvalid.
    """
    given: dict[str, Any] = {}
    for name, value in options.items():
        match name:
            case _ if name not in known:
                meant = _ELSEWHERE.get(name)
                guess = f" Did you mean {meant!r}?" if meant in known else nearest(name, known)
                raise OptionInvalid(
                    f"{where} has no option {name!r}.{guess} It takes {', '.join(known)};"
                    " the job's own arguments go to enqueue."
                )
            case _ if value is None:
                continue
            case "queue":
                check_new_queue(value)
            case "id":
                check_id(value)
            case _:
                from palermo.jobs.option_values import read_value

                value = read_value(name, value)
        given[name] = value
    return given


def split_arguments(
    arguments: Arguments, given_to: str = "enqueue_many"
) -> tuple[list[Any] | tuple[Any, ...], Mapping[str, Any]]:
    """Split one call's arguments, as `given_to` takes them, into positional and named. Raises OptionInvalid."""
    match arguments:
        case tuple() | list():
            return arguments, {}
        case Mapping():
            return (), arguments
        case _:
            raise OptionInvalid(
                f"{given_to} got {type(arguments).__name__} {str(arguments)[:40]!r} as one call's arguments."
                ' Give each call a tuple of positional arguments, such as ("a.png",), or a dict of named ones.'
            )


def recurring_job(definition: JobDefinition, options: Mapping[str, Any]) -> "RecurringJob | None":
    """The recurring job that the options of `@palermo.job` declare; None if they declare none.

    Raises OptionInvalid, and ArgumentsInvalid for arguments that the job does not take.
    """
    given = {name: value for name, value in options.items() if name in RECURRING_OPTIONS and value is not None}
    if not given:
        return None
    if "cron" not in given and "every" not in given:
        raise OptionInvalid(f"job {definition.name!r}: {next(iter(given))}= says nothing without cron= or every=.")
    from palermo.contract.recurring import RecurringJob, every_seconds

    args, kwargs = split_arguments(given.get("schedule_args", ()), "schedule_args")
    try:
        definition.bind(args, kwargs)
    except ArgumentsInvalid as error:
        raise ArgumentsInvalid(f"{error} A recurring job gets the arguments that schedule_args= names.") from None
    every = given.get("every")
    return RecurringJob(
        name=given.get("schedule_name", definition.name),
        job=definition.name,
        cron=given.get("cron", ""),
        every=None if every is None else every_seconds(every),
        tz=given.get("tz", "UTC"),
        missed=given.get("missed", "once"),
        args=tuple(args),
        kwargs=dict(kwargs),
    )
