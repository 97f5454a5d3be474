"""Hooks and failure backends: user code that runs around jobs, when workers start and stop, and for each failed job.

The table in docs/guides/hooks.md is generated from HOOKS. As in Resque, a function is a hook if its name starts with a
hook's name (`before_process`, `before_process_open_database`). Hooks registered with `@palermo.hook` run first, then
the job's own, each group ordered by name. Hooks are plain functions. Hooks around a run, except around_process, may
also be coroutine functions.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from palermo.core.text import nearest
from palermo.errors import OptionInvalid
from palermo.jobs.origin import Origin

if TYPE_CHECKING:
    from palermo.core.failure import Failure


F = TypeVar("F", bound=Callable[..., Any])

_JOB = "the job's arguments (a global hook gets the JobDefinition first)"
_WORKER = "a WorkerContext"
_SIZES = f"{_WORKER} and the number of waiting jobs by queue"


class HookRow(Struct, frozen=True):
    """A row of the table of hooks."""

    name: str
    #: The process that runs it: "caller" (enqueues or dequeues), "slot" (the child process that runs jobs) or
    #: "template" (the child process that imports the jobs and forks the slots).
    process: str
    #: Its arguments.
    arguments: str
    #: The effect of returning False.
    on_false: str
    #: The effect of raising.
    on_raise: str

    @property
    def for_jobs(self) -> bool:
        """Whether it is a job's hook rather than a worker's."""
        return not self.arguments.startswith(_WORKER)

    @property
    def awaited(self) -> bool:
        """Whether it may be a coroutine function. An around_process hook can't, because it is a generator."""
        return self.for_jobs and self.process == "slot" and self.name != "around_process"


_NOTHING = "nothing"
_LOGGED = "logged; the worker continues"
_FAILS = "the job fails with this error"

HOOKS: tuple[HookRow, ...] = (
    HookRow(
        "before_enqueue", "caller", _JOB, "not enqueued", "DontEnqueue: same as False; others: raised to the caller"
    ),
    HookRow("after_enqueue", "caller", _JOB, _NOTHING, "raised to the caller; the job is enqueued anyway"),
    HookRow("before_process", "slot", _JOB, "skipped, no failure", f"DontProcess: same as False; others: {_FAILS}"),
    HookRow(
        "around_process", "slot", _JOB, _NOTHING, f"DontProcess before yield: skipped, no failure; others: {_FAILS}"
    ),
    HookRow("after_process", "slot", _JOB, _NOTHING, _FAILS),
    HookRow("on_success", "slot", "the return value, then " + _JOB, _NOTHING, "logged; the job is done"),
    HookRow("on_failure", "slot", "the error, then " + _JOB, _NOTHING, "logged; the job fails with its original error"),
    HookRow(
        "on_exhausted", "slot", "the error, then " + _JOB, _NOTHING, "logged; the job fails with its original error"
    ),
    HookRow("before_dequeue", "caller", _JOB, "not dequeued", "raised to the caller; nothing is dequeued"),
    HookRow("after_dequeue", "caller", _JOB, _NOTHING, "raised to the caller; the jobs are removed anyway"),
    HookRow("before_first_fork", "template", _WORKER, _NOTHING, "the worker doesn't start"),
    HookRow("before_fork", "template", _WORKER, _NOTHING, _LOGGED),
    HookRow("after_fork", "slot", _WORKER, _NOTHING, _LOGGED),
    HookRow("queue_empty", "template", _WORKER, _NOTHING, _LOGGED),
    HookRow("queue_size", "template", _SIZES, "nothing; a number sets the interval", _LOGGED),
    HookRow("before_pause", "template", _WORKER, _NOTHING, _LOGGED),
    HookRow("after_pause", "template", _WORKER, _NOTHING, _LOGGED),
    HookRow("shutdown", "template", _WORKER, _NOTHING, _LOGGED),
    HookRow("worker_exit", "template", _WORKER, _NOTHING, _LOGGED),
)

JOB_HOOKS = tuple(row.name for row in HOOKS if row.for_jobs)
WORKER_HOOKS = tuple(row.name for row in HOOKS if not row.for_jobs)
_AWAITED = tuple(row.name for row in HOOKS if row.awaited)


class DontEnqueue(Exception):
    """Raised by a before_enqueue hook to skip the enqueue, without an error for the caller."""

    #: The module name stored in failed jobs, which is public.
    __module__ = "palermo.hooks"


class DontProcess(Exception):
    """Raised by a before_process hook to skip the job, which then counts as done."""

    #: The module name stored in failed jobs, which is public.
    __module__ = "palermo.hooks"


class WorkerContext(Struct, frozen=True, kw_only=True):
    """The argument of worker hooks."""

    #: `pid:<pid>@<host>`.
    id: str
    #: The pid of the worker's parent process.
    pid: int
    host: str
    queues: tuple[str, ...]


def kind_of(name: str, kinds: Sequence[str] = JOB_HOOKS + WORKER_HOOKS) -> str | None:
    """Return the kind of hook with this name; None if it isn't a hook's name."""
    return next((kind for kind in kinds if name == kind or name.startswith(kind + "_")), None)


class _Registered(Struct, frozen=True):
    """A user's function, and its origin to distinguish functions with the same name."""

    function: Callable[..., Any]
    origin: Origin

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "_Registered":
        return cls(function, Origin.of(function))

    def added_to(self, others: Sequence["_Registered"]) -> tuple["_Registered", ...]:
        """Return the functions with this one added, replacing its earlier version."""
        return (*(other for other in others if not self._replaces(other)), self)

    def _replaces(self, other: "_Registered") -> bool:
        mine, its = self.origin, other.origin
        return mine.is_same_name(its) and not mine.is_written_beside(its)


class Hooks:
    """Functions registered as hooks, by kind."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._functions: tuple[_Registered, ...] = ()
        #: The registered functions of each kind, by name.
        self.by_kind: dict[str, tuple[Callable[..., Any], ...]] = {}

    def add(self, function: F) -> F:
        """Register a function by its name. If its module is reloaded, the new function replaces the old one.

        Two functions in one module with the same name both run if they are on different lines. Raises OptionInvalid if
        the name isn't a hook's, and for a coroutine function in place of a hook that isn't awaited.
        """
        check_hook(getattr(function, "__name__", ""), function, self._kinds)
        self._functions = _Registered.of(function).added_to(self._functions)
        self._changed()
        return function

    def remove(self, function: Callable[..., Any]) -> None:
        """Unregister a function. Does nothing if it isn't registered."""
        self._functions = tuple(one for one in self._functions if one.function is not function)
        self._changed()

    def _changed(self) -> None:
        self.by_kind = {}
        for function in sorted((one.function for one in self._functions), key=lambda function: function.__name__):
            kind = str(kind_of(function.__name__, self._kinds))
            self.by_kind[kind] = (*self.of(kind), function)

    def of(self, kind: str) -> tuple[Callable[..., Any], ...]:
        """The functions of one kind, ordered by name."""
        return self.by_kind.get(kind, ())


def check_hook(name: str, function: Any, kinds: Sequence[str]) -> None:
    """Raise OptionInvalid if a function can't be a hook of these kinds."""
    kind = kind_of(name, kinds)
    if kind is None:
        raise OptionInvalid(f"{name!r} isn't a hook. Its name must start with one of {', '.join(kinds)}.")
    if inspect.isasyncgenfunction(function) or (inspect.iscoroutinefunction(function) and kind not in _AWAITED):
        raise OptionInvalid(
            f"hook {name!r} is a coroutine function and would not be awaited. Only {', '.join(_AWAITED[:-1])} and"
            f" {_AWAITED[-1]} may be coroutine functions."
        )


def check_methods(cls: type) -> None:
    """Raise OptionInvalid for a method whose name resembles a hook's, because it would never be called.

    In Resque the run itself is named `perform`. Names that begin with an underscore are ignored.
    """
    for name in dir(cls):
        written = name.lower().replace("perform", "process")
        alike = [kind for kind in JOB_HOOKS if kind[:2] == written[:2]]
        if not alike or kind_of(name, JOB_HOOKS) or not callable(getattr(cls, name, None)):
            continue
        # A hook's name consists of two words and an optional suffix.
        question = nearest("_".join(written.split("_")[:2]), alike, cutoff=0.8)
        if question:
            raise OptionInvalid(
                f"method {name!r} of class {cls.__qualname__!r} isn't a hook and would never be called.{question}"
                " If it isn't meant as a hook, rename it, for example with a leading underscore."
            )


#: The hooks registered with `@palermo.hook`.
registered = Hooks(JOB_HOOKS + WORKER_HOOKS)


def hook(function: F) -> F:
    """Register a function, by its name, as a hook for all jobs or for the workers that import it.

    The guide to hooks lists the names and their arguments. Raises OptionInvalid for other names.
    """
    return registered.add(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """The report that failure backends get about a failed job."""

    id: str
    #: The job's wire name; "" if the message has none.
    job: str
    queue: str
    #: The arguments as text, at most 100 characters; "..." ends a shortened text.
    preview: str
    failure: "Failure"
    #: The tag of the slot that ran it.
    worker: str
    #: The number of the run, starting at 1.
    attempt: int = 1
    #: The headers given by `.options(headers=…)`, and others that Palermo doesn't know.
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: The exception. It has no traceback if the job's process died (JobCrashed, JobTimeout, JobOutOfMemory).
    error: BaseException | None = field(default=None, repr=False, compare=False)


B = TypeVar("B", bound=Callable[[FailureReport], Any])

_backends: tuple[_Registered, ...] = ()


def failure_backend(function: B) -> B:
    """Register a function that gets a report of each failed job.

    It runs in the slot. If it raises, the error is logged and the job isn't affected. If its module is reloaded, the
    new function replaces the old one.
    """
    global _backends
    if not callable(function) or isinstance(function, type):
        raise OptionInvalid(f"{function!r} can't be a failure backend. Give a function that takes a FailureReport.")
    _backends = _Registered.of(function).added_to(_backends)
    return function


def failure_backends() -> tuple[Callable[[FailureReport], Any], ...]:
    """The registered failure backends, in the order of registration."""
    return tuple(one.function for one in _backends)


def log_failure(report: FailureReport) -> None:
    """A failure backend that writes one line per failed job to the log `palermo.failures`.

    Turn it on with `palermo.failure_backend(palermo.hooks.log_failure)`.
    """
    import logging

    logging.getLogger("palermo.failures").error(
        "%s: %s id=%s job=%s queue=%s args=%r worker=%s",
        report.failure.exception_class,
        report.failure.message.partition("\n")[0],
        report.id,
        report.job,
        report.queue,
        report.preview,
        report.worker,
    )


class HookedJob(Protocol):
    """The parts of a job definition needed to call hooks."""

    @property
    def is_class(self) -> bool: ...
    @property
    def own_hooks(self) -> Hooks: ...
    def hooks(self, kind: str, instance: object | None = None) -> tuple[Callable[..., Any], ...]: ...


def hooks_for(kind: str, definition: HookedJob, instance: object | None = None) -> tuple[Callable[..., Any], ...]:
    """Return a job's hooks of one kind, global ones first. Call them with the job's arguments.

    on_success hooks take the return value before the arguments, and on_failure and on_exhausted hooks the error.
    `instance` is the object whose `process` runs, so that the hooks of a class share its state.
    """
    # Most jobs have no hooks, so this fast path creates no objects.
    own = definition.hooks(kind, instance) if definition.is_class else definition.own_hooks.by_kind.get(kind, ())
    everywhere = registered.by_kind.get(kind, ())
    return (*(partial(function, definition) for function in everywhere), *own) if everywhere else own


def run_before_hooks(
    kind: str,
    definition: HookedJob,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    instance: object | None = None,
) -> bool:
    """Run the hooks of a `before_…` kind. Returns False when one returns False or raises DontEnqueue or DontProcess."""
    try:
        calls = hooks_for(kind, definition, instance)
        return not calls or all(call(*args, **kwargs) is not False for call in calls)
    except (DontEnqueue, DontProcess):
        return False
