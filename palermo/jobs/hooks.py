"""Hooks and failure back ends: user code that runs around jobs, in the life of a worker, and for each failed job.

HOOKS is the catalogue, from which docs/guides/hooks.md has its table. A function is a hook by
its name: it starts with one of the catalogue's names, as in Resque (`before_process`,
`before_process_open_database`). If several apply, those registered with `@palermo.hook`
run first, then the job's own; each group by name. Hooks are plain functions; those of a run
may be coroutine functions too, but for around_process.
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

_JOB = "the job's own (a global one gets the JobDefinition before them)"
_WORKER = "a WorkerContext"


class HookRow(Struct, frozen=True, kw_only=True):
    """One line of the catalogue."""

    name: str
    #: The process that runs it: "caller" (the process that enqueues or dequeues), "slot" (the child process
    #: that runs jobs), "template" (the child process that has imported the jobs and forks the slots).
    process: str
    #: Its arguments.
    arguments: str
    #: The effect of returning False.
    on_false: str
    #: The effect of raising.
    on_raise: str

    @property
    def for_jobs(self) -> bool:
        """Whether it belongs to a job, and not to the life of a worker."""
        return not self.arguments.startswith(_WORKER)

    @property
    def awaited(self) -> bool:
        """Whether it may be a coroutine function. An around_process hook holds the run, and is a generator."""
        return self.for_jobs and self.process == "slot" and self.name != "around_process"


def _row(name: str, process: str, arguments: str, on_false: str, on_raise: str) -> HookRow:
    return HookRow(name=name, process=process, arguments=arguments, on_false=on_false, on_raise=on_raise)


_NOTHING = "nothing"
_LOGGED = "logged; the worker goes on"
_FAILS = "the job fails with that error"

HOOKS: tuple[HookRow, ...] = (
    _row("before_enqueue", "caller", _JOB, "not enqueued", "DontEnqueue: as False; else the caller gets it instead"),
    _row("after_enqueue", "caller", _JOB, _NOTHING, "raised to the caller; the job is enqueued anyway"),
    _row("before_process", "slot", _JOB, "skipped, no failure", f"DontProcess: as False; else {_FAILS}"),
    _row("around_process", "slot", _JOB, _NOTHING, f"DontProcess before the yield: skipped, no failure; else {_FAILS}"),
    _row("after_process", "slot", _JOB, _NOTHING, _FAILS),
    _row("on_success", "slot", "what the job returned, then " + _JOB, _NOTHING, "logged; the job is done"),
    _row("on_failure", "slot", "the error, then " + _JOB, _NOTHING, "logged; the job fails with its first error"),
    _row("on_exhausted", "slot", "the error, then " + _JOB, _NOTHING, "logged; the job fails with its first error"),
    _row("before_dequeue", "caller", _JOB, "not dequeued", "the caller gets it, nothing is dequeued"),
    _row("after_dequeue", "caller", _JOB, _NOTHING, "raised to the caller; the jobs are removed anyway"),
    _row("before_first_fork", "template", _WORKER, _NOTHING, "the worker does not start"),
    _row("before_fork", "template", _WORKER, _NOTHING, _LOGGED),
    _row("after_fork", "slot", _WORKER, _NOTHING, _LOGGED),
    _row("queue_empty", "template", _WORKER, _NOTHING, _LOGGED),
    _row("queue_size", "template", f"{_WORKER}, and the waiting jobs by queue", "nothing; a number: the pace", _LOGGED),
    _row("before_pause", "template", _WORKER, _NOTHING, _LOGGED),
    _row("after_pause", "template", _WORKER, _NOTHING, _LOGGED),
    _row("shutdown", "template", _WORKER, _NOTHING, _LOGGED),
    _row("worker_exit", "template", _WORKER, _NOTHING, _LOGGED),
)

JOB_HOOKS = tuple(row.name for row in HOOKS if row.for_jobs)
WORKER_HOOKS = tuple(row.name for row in HOOKS if not row.for_jobs)
_AWAITED = tuple(row.name for row in HOOKS if row.awaited)


class DontEnqueue(Exception):
    """Raised by a before_enqueue hook: the job is not enqueued, and the caller gets no error."""

    #: Its public home: failed jobs are stored with this name.
    __module__ = "palermo.hooks"


class DontProcess(Exception):
    """Raised by a before_process hook: the job is skipped and counts as done."""

    #: Its public home: failed jobs are stored with this name.
    __module__ = "palermo.hooks"


class WorkerContext(Struct, frozen=True, kw_only=True):
    """The argument of a worker hook."""

    #: `pid:<pid>@<host>`.
    id: str
    #: The pid of the worker's parent process.
    pid: int
    host: str
    queues: tuple[str, ...]


def kind_of(name: str, kinds: Sequence[str] = JOB_HOOKS + WORKER_HOOKS) -> str | None:
    """The kind of hook that a function of this name is; None if it is no hook."""
    return next((kind for kind in kinds if name == kind or name.startswith(kind + "_")), None)


class _Registered(Struct, frozen=True):
    """A function of the user's, and what tells it from another one of the same name."""

    function: Callable[..., Any]
    origin: Origin

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "_Registered":
        return cls(function, Origin.of(function))

    def added_to(self, others: Sequence["_Registered"]) -> tuple["_Registered", ...]:
        """The others, without the one that it replaces, and this one last."""
        return (*(other for other in others if not self._replaces(other)), self)

    def _replaces(self, other: "_Registered") -> bool:
        mine, its = self.origin, other.origin
        return mine.is_same_name(its) and not mine.is_written_beside(its)


class Hooks:
    """Functions registered as hooks, found again by kind."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._functions: tuple[_Registered, ...] = ()
        self._sorted: dict[str, tuple[Callable[..., Any], ...]] = {}
        #: The kinds that have a function.
        self.present: frozenset[str] = frozenset()

    def add(self, function: F) -> F:
        """Register a function by its name; a reload of its module replaces it.

        Two functions of one name that stand in different lines of a module both run. Raises OptionInvalid for a name
        that is no hook's, and for a coroutine function that would not be awaited.
        """
        check_hook(getattr(function, "__name__", ""), function, self._kinds)
        self._functions = _Registered.of(function).added_to(self._functions)
        self._changed()
        return function

    def remove(self, function: Callable[..., Any]) -> None:
        """Forget a function; nothing happens if it is not there."""
        self._functions = tuple(one for one in self._functions if one.function is not function)
        self._changed()

    def _changed(self) -> None:
        self._sorted = {}
        kinds = (kind_of(one.function.__name__, self._kinds) for one in self._functions)
        self.present = frozenset(kind for kind in kinds if kind is not None)

    def of(self, kind: str) -> tuple[Callable[..., Any], ...]:
        """The functions of one kind, by name."""
        found = self._sorted.get(kind)
        if found is None:
            named = [(one.function.__name__, one.function) for one in self._functions]
            named = [(name, function) for name, function in named if kind_of(name, self._kinds) == kind]
            found = tuple(function for _, function in sorted(named, key=lambda pair: pair[0]))
            self._sorted[kind] = found
        return found


def check_hook(name: str, function: Any, kinds: Sequence[str]) -> None:
    """Raise OptionInvalid for a function that cannot be a hook of these kinds."""
    kind = kind_of(name, kinds)
    if kind is None:
        raise OptionInvalid(f"{name!r} is no hook: its name must start with one of {', '.join(kinds)}.")
    if inspect.isasyncgenfunction(function) or (inspect.iscoroutinefunction(function) and kind not in _AWAITED):
        raise OptionInvalid(
            f"hook {name!r} is a coroutine function, and would not be awaited. Only {', '.join(_AWAITED[:-1])} and"
            f" {_AWAITED[-1]} may be coroutine functions."
        )


def check_methods(cls: type) -> None:
    """Raise OptionInvalid for a method of a job's class whose name is nearly that of a hook: it would never be called.

    Resque calls a run `perform`. A name that begins with an underscore is no hook's.
    """
    for name in dir(cls):
        written = name.lower().replace("perform", "process")
        alike = [kind for kind in JOB_HOOKS if kind[:2] == written[:2]]
        if not alike or kind_of(name, JOB_HOOKS) or not callable(getattr(cls, name, None)):
            continue
        # A hook's name is two words, and more may follow.
        question = nearest("_".join(written.split("_")[:2]), alike, cutoff=0.8)
        if question:
            raise OptionInvalid(
                f"method {name!r} of class {cls.__qualname__!r} is no hook, and would never be called.{question}"
                " If it is not meant to be one, give it another name, for instance with an underscore in front."
            )


#: The hooks that `@palermo.hook` registered.
registered = Hooks(JOB_HOOKS + WORKER_HOOKS)


def hook(function: F) -> F:
    """Register a function for all jobs, or for the life of the workers that import it, by its name.

    See HOOKS for the names and the arguments of each. Raises OptionInvalid for other names.
    """
    return registered.add(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """The report about a failed job that a failure back end gets."""

    id: str
    #: Its wire name; "" if the message named none.
    job: str
    queue: str
    #: The arguments for people, at most 100 characters; "..." ends those that were cut.
    preview: str
    failure: "Failure"
    #: The tag of the slot that ran it.
    worker: str
    #: Which run this was, from 1.
    attempt: int = 1
    #: The headers that the job was enqueued with by `.options(headers=…)`, and others that Palermo does not know.
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: The exception. It has no traceback if the job's process ended: JobCrashed, JobTimeout or JobOutOfMemory.
    error: BaseException | None = field(default=None, repr=False, compare=False)


B = TypeVar("B", bound=Callable[[FailureReport], Any])

_backends: tuple[_Registered, ...] = ()


def failure_backend(function: B) -> B:
    """Register a function that gets a report of each failed job, besides the queue `failed`.

    It runs in the slot. An error that it raises is logged and changes nothing for the job. A reload
    of its module replaces it.
    """
    global _backends
    if not callable(function) or isinstance(function, type):
        raise OptionInvalid(f"{function!r} cannot be a failure back end: give a function that takes a FailureReport.")
    _backends = _Registered.of(function).added_to(_backends)
    return function


def failure_backends() -> tuple[Callable[[FailureReport], Any], ...]:
    """The registered failure back ends, in the order of registration."""
    return tuple(one.function for one in _backends)


def log_failure(report: FailureReport) -> None:
    """A ready failure back end: one line per failed job in the log `palermo.failures`.

    `palermo.failure_backend(palermo.hooks.log_failure)` turns it on.
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
    """What the calls of hooks need of a job's definition."""

    @property
    def is_class(self) -> bool: ...
    @property
    def own_hooks(self) -> Hooks: ...
    def hooks(self, kind: str, instance: object | None = None) -> tuple[Callable[..., Any], ...]: ...


def hooks_for(kind: str, definition: HookedJob, instance: object | None = None) -> tuple[Callable[..., Any], ...]:
    """The hooks of one kind that apply to a job, global ones first; call them with the job's own arguments.

    For on_success the returned value comes before these, for on_failure and on_exhausted the error. `instance` is the
    object whose `process` runs, so that a class's hooks and its process share state.
    """
    # Fast path: most jobs have no hooks. A run that does nothing, in a loop: 5.8 µs, 6.5 without.
    own = definition.hooks(kind, instance) if definition.is_class or kind in definition.own_hooks.present else ()
    everywhere = registered.of(kind) if kind in registered.present else ()
    return (*(partial(function, definition) for function in everywhere), *own) if everywhere else own


def run_before_hooks(
    kind: str,
    definition: HookedJob,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    instance: object | None = None,
) -> bool:
    """Run the hooks of a `before_…` kind; False as soon as one refuses, by False, DontEnqueue or DontProcess."""
    try:
        calls = hooks_for(kind, definition, instance)
        return not calls or all(call(*args, **kwargs) is not False for call in calls)
    except (DontEnqueue, DontProcess):
        return False
