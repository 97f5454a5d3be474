"""Hooks: user code that runs around jobs and in the life of a worker.

HOOKS is the catalogue, and docs/guides/hooks.md is checked against it. A function is a hook by
its name: it starts with one of the catalogue's names, as in Resque (`before_process`,
`before_process_open_database`). If several apply, those registered with `@palermo.hook`
run first, then the job's own; each group by name. Hooks are plain functions, not
coroutines: some run where no event loop can be.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from palermo.errors import OptionInvalid

F = TypeVar("F", bound=Callable[..., Any])

_JOB = "the job's own (a global one gets the JobDefinition before them)"
_WORKER = "a WorkerContext"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow:
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


def _row(name: str, process: str, arguments: str, on_false: str, on_raise: str) -> HookRow:
    return HookRow(name=name, process=process, arguments=arguments, on_false=on_false, on_raise=on_raise)


_NOTHING = "nothing"
_LOGGED = "logged; the worker goes on"
_FAILS = "the job fails with that error"

HOOKS: tuple[HookRow, ...] = (
    _row("before_enqueue", "caller", _JOB, "not enqueued", "DontEnqueue: as False; else the caller gets it instead"),
    _row("after_enqueue", "caller", _JOB, _NOTHING, "the caller gets it; the job is enqueued all the same"),
    _row("before_process", "slot", _JOB, "skipped, no failure", f"DontProcess: as False; else {_FAILS}"),
    _row("around_process", "slot", _JOB, _NOTHING, f"DontProcess before the yield: skipped, no failure; else {_FAILS}"),
    _row("after_process", "slot", _JOB, _NOTHING, _FAILS),
    _row("on_failure", "slot", "the error, then " + _JOB, _NOTHING, "logged; the job fails with its first error"),
    _row("on_exhausted", "slot", "the error, then " + _JOB, _NOTHING, "logged; the job fails with its first error"),
    _row("before_dequeue", "caller", _JOB, "not dequeued", "the caller gets it, nothing is dequeued"),
    _row("after_dequeue", "caller", _JOB, _NOTHING, "the caller gets it; the jobs are gone all the same"),
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


class DontEnqueue(Exception):
    """Raised by a before_enqueue hook: the job is not enqueued, and the caller gets no error."""

    #: Its public home: failed jobs are stored with this name.
    __module__ = "palermo.hooks"


class DontProcess(Exception):
    """Raised by a before_process hook: the job is skipped and counts as done."""

    #: Its public home: failed jobs are stored with this name.
    __module__ = "palermo.hooks"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
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


class Hooks:
    """Functions registered as hooks, found again by kind."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._functions: dict[tuple[str, str], Callable[..., Any]] = {}
        self._sorted: dict[str, tuple[Callable[..., Any], ...]] = {}
        #: The kinds that have a function.
        self.present: frozenset[str] = frozenset()

    def add(self, function: F) -> F:
        """Register a function by its name; a reload of its module replaces it.

        Raises OptionInvalid for a name that is no hook's, and for a coroutine function.
        """
        name = getattr(function, "__name__", "")
        check_hook(name, function, self._kinds)
        qualified = getattr(function, "__qualname__", name)
        self._functions[function.__module__, qualified] = function
        self._changed()
        return function

    def remove(self, function: Callable[..., Any]) -> None:
        """Forget a function; nothing happens if it is not there."""
        self._functions = {key: value for key, value in self._functions.items() if value is not function}
        self._changed()

    def _changed(self) -> None:
        self._sorted = {}
        kinds = (kind_of(function.__name__, self._kinds) for function in self._functions.values())
        self.present = frozenset(kind for kind in kinds if kind is not None)

    def of(self, kind: str) -> tuple[Callable[..., Any], ...]:
        """The functions of one kind, by name."""
        found = self._sorted.get(kind)
        if found is None:
            named = [(f.__name__, f) for f in self._functions.values() if kind_of(f.__name__, self._kinds) == kind]
            found = tuple(function for _, function in sorted(named, key=lambda pair: pair[0]))
            self._sorted[kind] = found
        return found


def check_hook(name: str, function: Any, kinds: Sequence[str]) -> None:
    """Raise OptionInvalid for a function that cannot be a hook of these kinds."""
    if kind_of(name, kinds) is None:
        raise OptionInvalid(f"{name!r} is no hook: its name must start with one of {', '.join(kinds)}.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise OptionInvalid(f"hook {name!r} is a coroutine function; hooks are plain functions.")


#: The hooks that `@palermo.hook` registered.
registered = Hooks(JOB_HOOKS + WORKER_HOOKS)


def hook(function: F) -> F:
    """Register a function for all jobs, or for the life of the workers that import it, by its name.

    See HOOKS for the names and the arguments of each. Raises OptionInvalid for other names.
    """
    return registered.add(function)
