"""The table of job options, with the type, kind and meaning of each.

Law: everything that handles options reads this table: decorators and `.options()`, messages, the journal, frames sent
to slots, `palermo enqueue`, the API and the reference. A new option needs a row here and the code that implements it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict, get_args

from msgspec import Struct

from palermo.core.bounds import MAX_LIMIT, MAX_RETRIES
from palermo.core.fair_scheduling import LEAST_SHARE, MOST_SHARE
from palermo.core.text import nearest
from palermo.core.times import Duration, Instant
from palermo.core.topology import MAX_PRIORITY
from palermo.errors import OptionInvalid
from palermo.jobs.batch import MOST_BATCH
from palermo.jobs.option_kinds import (
    ANY,
    BACKOFF,
    FLAG,
    ID,
    INSTANT,
    NAME,
    QUEUE,
    RATE,
    SECONDS,
    Choice,
    Count,
    Errors,
    Headers,
    Key,
    Kind,
    MayFail,
    Number,
    Seconds,
    Tenant,
    UniqueFor,
    check_limit_key,
    check_tenant,
    check_unique_key,
)

if TYPE_CHECKING:
    from palermo.core.retry_policy import ErrorTypes

#: Option values with a fixed set of words.
Unique = Literal["until_start", "until_done"]
OnDuplicate = Literal["return", "raise", "replace", "rerun"]
BackoffName = Literal["exponential", "linear", "fixed"]
Missed = Literal["skip", "once", "all"]

#: A name, a duration, a sequence of durations, a shape such as palermo.Exponential, or a function.
BackoffOption = BackoffName | Duration | Sequence[Duration] | Callable[..., Any]

#: Text, or a function of the job's arguments that returns it.
KeyOption = str | Callable[..., str]

#: The arguments of one call in enqueue_many: positional in a tuple or list, or keyword arguments in a dict.
Arguments = tuple[Any, ...] | list[Any] | Mapping[str, Any]


class Option(Struct, frozen=True):
    """A row of the table."""

    #: How its value is read.
    kind: Kind
    #: Its meaning, in one sentence: for `--help`, the API and the reference.
    help: str
    #: Whether a workflow step accepts it. Steps are already unique by id.
    in_steps: bool = True


# The rows, grouped by where they are allowed. None leaves the choice to the job's declaration or the settings. A
# duration is a number of seconds or a timedelta.


class _Encoding(TypedDict, total=False):
    serializer: Annotated[str | None, Option(NAME, "Serializer of the arguments: json, msgpack, or one of your own.")]
    compression: Annotated[str | None, Option(NAME, "Compression of the arguments: gzip, zstd, or one of your own.")]
    sign: Annotated[bool | None, Option(FLAG, "Sign the arguments with the first key in the `signing_keys` setting.")]


class _Id(TypedDict, total=False):
    id: Annotated[str | None, Option(ID, "Id of 1 to 255 bytes; a new UUID by default.")]


class _Run(TypedDict, total=False):
    timeout: Annotated[Duration | None, Option(SECONDS, "Maximum duration of one run.")]
    retries: Annotated[int | None, Option(Count(0, MAX_RETRIES), "Maximum number of retries.")]


class _Retrying(TypedDict, total=False):
    backoff: Annotated[BackoffOption | None, Option(BACKOFF, "Delay before each retry.")]
    retry_for: Annotated[Duration | None, Option(SECONDS, "Maximum time from the first failure to the last retry.")]
    retry_on: Annotated["ErrorTypes | None", Option(Errors(), "Exceptions to retry; all by default.")]
    discard_on: Annotated["ErrorTypes | None", Option(Errors(), "Exceptions that discard the job without a retry.")]


class _Result(TypedDict, total=False):
    keep_result: Annotated[
        bool | None,
        Option(FLAG, "Keep the job's result, for `Job.result` and `palermo wait`."),
    ]


class _OneByOne(TypedDict, total=False):
    """Options that batched jobs can't have, because they make an individual job wait or end."""

    rerun_after: Annotated[
        Duration | None,
        Option(SECONDS, "Maximum duration of a run before it is killed and repeated."),
    ]
    limit: Annotated[int | None, Option(Count(1, MAX_LIMIT), "Maximum number of runs at once, across all workers.")]
    limit_key: Annotated[
        KeyOption | None, Option(Key(check_limit_key), "Key that limit and rate apply to; by default, the job.")
    ]
    rate: Annotated[str | None, Option(RATE, "Maximum rate of runs, across all workers, such as 50/s or 100/min.")]
    unique: Annotated[
        Unique | Duration | None,
        Option(
            UniqueFor(get_args(Unique)),
            "Time that the job's key blocks other jobs: until_start, until_done, or a duration.",
            in_steps=False,
        ),
    ]
    on_duplicate: Annotated[
        OnDuplicate | None,
        Option(
            Choice(get_args(OnDuplicate)),
            "What to do if another job holds the key: return that job, raise an error, replace its arguments, or"
            " rerun it after its end.",
            in_steps=False,
        ),
    ]
    dedupe: Annotated[
        Duration | None, Option(SECONDS, "Time that the job's key blocks other jobs after it ends.", in_steps=False)
    ]


class _Waiting(TypedDict, total=False):
    queue: Annotated[str | None, Option(QUEUE, "Queue to enqueue the job to.")]
    priority: Annotated[
        int | None,
        Option(Count(0, MAX_PRIORITY), f"Priority within its queue, from 0 to {MAX_PRIORITY}; the highest runs first."),
    ]
    expires: Annotated[Duration | None, Option(SECONDS, "Maximum time between the job's due time and its start.")]
    delay: Annotated[Duration | None, Option(Seconds(from_zero=True), "Minimum time before the job runs.")]
    unique_key: Annotated[
        KeyOption | None,
        Option(
            Key(check_unique_key),
            "Key that makes the job unique; by default, its id if you set one, otherwise its arguments.",
            in_steps=False,
        ),
    ]
    debounce: Annotated[
        Duration | None,
        Option(SECONDS, "Run only the last enqueue, once this time has passed without another.", in_steps=False),
    ]
    throttle: Annotated[
        Duration | None,
        Option(SECONDS, "Run at most once in this time: the first enqueue immediately, then the last.", in_steps=False),
    ]
    tenant: Annotated[
        KeyOption | None,
        Option(Tenant(check_tenant), "Tenant of the job, for a fair share of the queue."),
    ]
    share: Annotated[
        float | None,
        Option(
            Number(LEAST_SHARE, MOST_SHARE),
            f"The tenant's share of the queue, from {LEAST_SHARE:g} to {MOST_SHARE:,.0f}; 1 by default.",
        ),
    ]


class _Call(TypedDict, total=False):
    run_at: Annotated[Instant | None, Option(INSTANT, "Earliest time to run: Unix seconds, or an aware datetime.")]
    headers: Annotated[
        Mapping[str, str | int | float | bool] | None,
        Option(Headers(), "Your own headers: text, numbers and bools, up to 2,000 characters."),
    ]


class _Declaration(TypedDict, total=False):
    name: Annotated[str | None, Option(ANY, "Name on the wire; package.module.name by default.")]
    arguments: Annotated[
        Literal["", "one"],
        Option(
            Choice(("", "one")), '"one" passes the decoded body as the only argument, for messages from other programs.'
        ),
    ]


class _RecurringOptions(TypedDict, total=False):
    cron: Annotated[str | None, Option(ANY, "Schedule in crontab syntax: five fields, or six with seconds.")]
    every: Annotated[Duration | None, Option(SECONDS, "Time between runs, instead of cron.")]
    tz: Annotated[str | None, Option(ANY, "Time zone of cron, such as Europe/Rome; UTC by default.")]
    missed: Annotated[
        Missed | None,
        Option(Choice(get_args(Missed)), "What to do about missed runs: skip, once or all."),
    ]
    schedule_name: Annotated[str | None, Option(ANY, "Name of the recurring job; the job's name by default.")]
    schedule_args: Annotated["Arguments | None", Option(ANY, "Arguments of the scheduled runs.")]


class ManyOptions(_Waiting, _OneByOne, _Run, _Result, _Call, _Encoding, total=False):
    """The options of `enqueue_many`."""


class EnqueueOptions(ManyOptions, _Id, total=False):
    """The options of an enqueue by name."""


class StepOptions(EnqueueOptions, total=False):
    """The options of `.options()`, including those for workflow steps."""

    may_fail: Annotated[
        bool | int | None,
        Option(
            MayFail(), "Whether a step of a workflow can fail; for `flow.map`, the number of its jobs that can fail."
        ),
    ]


class SubscribeOptions(_Run, _Retrying, _Result, total=False):
    """The options of `@palermo.subscribe`."""


class BatchOptions(_Declaration, _Waiting, _Run, _Retrying, _RecurringOptions, _Encoding, total=False):
    """The options of `@palermo.job` for a batch job."""

    batch: Annotated[
        Required[int], Option(Count(1, MOST_BATCH), "Maximum number of jobs in one call, which takes a list.")
    ]
    batch_wait: Annotated[
        Duration | None, Option(Seconds(from_zero=True), "Time that the first job of a batch waits for others.")
    ]


class JobOptions(
    _Declaration, _Waiting, _OneByOne, _Run, _Retrying, _Result, _RecurringOptions, _Encoding, total=False
):
    """The options of `@palermo.job` for a job that takes one message per call."""

    default: Annotated[bool, Option(FLAG, "Run this job for messages in its queue that do not name a job.")]


class WorkflowOptions(JobOptions, total=False):
    """The options of `@palermo.workflow`."""

    deadline: Annotated[
        Duration | None, Option(SECONDS, "Maximum time from the workflow's first run to its end. After that, it fails.")
    ]


class PublishOptions(_Id, _Encoding, total=False):
    """The options of `palermo.publish`."""


#: The names of the options in each group.
RECURRING_OPTIONS = tuple(_RecurringOptions.__annotations__)
JOB_OPTIONS = tuple(JobOptions.__annotations__ | BatchOptions.__annotations__)
SUBSCRIBE_OPTIONS = tuple(SubscribeOptions.__annotations__)
PUBLISH_OPTIONS = tuple(PublishOptions.__annotations__)
ENQUEUE_OPTIONS = tuple(EnqueueOptions.__annotations__)
STEP_OPTIONS = tuple(StepOptions.__annotations__)
WORKFLOW_OPTIONS = tuple(WorkflowOptions.__annotations__)

#: The options that batched jobs can't have.
ONE_BY_ONE = tuple(_OneByOne.__annotations__)

#: The options that a job definition has.
DECLARED_OPTIONS = tuple(name for name in JOB_OPTIONS + WORKFLOW_OPTIONS if name not in (*RECURRING_OPTIONS, "name"))

#: The declared options that are sent with each message, except the queue. Declared retries are part of the worker's
#: policy.
CARRIED_OPTIONS = frozenset(DECLARED_OPTIONS) & frozenset(ENQUEUE_OPTIONS) - {"queue", "retries"}

#: All options, by name.
OPTIONS: Mapping[str, Option] = {
    name: annotation.__metadata__[0]
    for declared in (StepOptions, WorkflowOptions, BatchOptions)
    for name, annotation in declared.__annotations__.items()
}

#: The options that a workflow step cannot have.
NOT_IN_STEPS = tuple(name for name, option in OPTIONS.items() if not option.in_steps)

#: Options of Celery, Dramatiq, RQ and Sidekiq whose names resemble different options here.
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
    """Check and convert the given options; those that are None are omitted, and durations become seconds.

    Raises OptionInvalid for an unknown option or invalid value, QueueNameInvalid and IdInvalid.
    """
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            meant = _ELSEWHERE.get(name)
            guess = f" Did you mean {meant!r}?" if meant in known else nearest(name, known)
            raise OptionInvalid(
                f"{where} has no option {name!r}.{guess} Its options are {', '.join(known)}. Pass the job's arguments"
                " to enqueue."
            )
        if value is not None:
            given[name] = OPTIONS[name].kind.read(name, value)
    return given


def split_arguments(
    arguments: Arguments, given_to: str = "enqueue_many"
) -> tuple[list[Any] | tuple[Any, ...], Mapping[str, Any]]:
    """Split the arguments of one call into positional and keyword ones. Raises OptionInvalid, with a text for
    `given_to`.
    """
    match arguments:
        case tuple() | list():
            return arguments, {}
        case Mapping():
            return (), arguments
        case _:
            raise OptionInvalid(
                f"{given_to} got {type(arguments).__name__} {str(arguments)[:40]!r} as the arguments of a call. Pass a"
                ' tuple of positional arguments for each call, such as ("a.png",), or a dict of named ones.'
            )
