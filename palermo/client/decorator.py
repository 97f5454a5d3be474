"""The decorator `@palermo.job` and the methods that it adds to a function or class: `enqueue`, `options`, `dequeue`.

A decorated function becomes an object that can still be called; a decorated class stays the same class. The keyword
arguments of `enqueue` are always the job's own; Palermo's options are given with `@palermo.job(...)` and
`.options(...)`. The code behind `enqueue` is in client/client.py.
"""

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from palermo.client import forking
from palermo.client.handle import Job
from palermo.contract import clock
from palermo.core.times import Duration, Instant, delay_seconds
from palermo.errors import OptionInvalid
from palermo.jobs.definition import JobDefinition, define, recurring_job
from palermo.jobs.job_registry import registry
from palermo.jobs.options import (
    JOB_OPTIONS,
    RECURRING_OPTIONS,
    STEP_OPTIONS,
    Arguments,
    BatchOptions,
    JobOptions,
    StepOptions,
    read_options,
    split_arguments,
)

if TYPE_CHECKING:
    from palermo.client.client import Client
    from palermo.jobs.batch import Batch

P = ParamSpec("P")
#: Return type of a job, or of its awaited value if it is a coroutine function.
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
#: Return type of calling the function directly.
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
#: Types of a batch item, of the list that the function takes, and of its return value when called directly.
T = TypeVar("T")
L = TypeVar("L")
K = TypeVar("K", bound="JobClass")


class HasProcess(Protocol[P, R_co]):
    """A class with a `process` method."""

    def process(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class TakesBatches(Protocol[T]):
    """A class job that takes a list."""

    def process(self, items: "Batch[T]", /) -> Any: ...


class AwaitsProcess(Protocol[P, R_co]):
    """A class job whose `process` is a coroutine function. The job's result is the awaited value."""

    async def process(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Enqueuer(Generic[P, R]):
    """A job with the options given to `.options()`."""

    __slots__ = ("definition", "given")

    def __init__(self, definition: JobDefinition, **options: Any) -> None:
        self.definition = definition
        #: The options given to `.options()`, for outboxes.
        self.given = options

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store one job with these arguments, and return once the broker has confirmed it.

        Raises ArgumentsInvalid, EncodeError, BodyTooLarge, and within `publish_timeout` BrokerUnavailable,
        BrokerRefused or PublishRefused.
        """
        return _client().enqueue(self.definition, args, kwargs, **self.given)

    def enqueue_many(self, calls: Iterable[Arguments]) -> list[Job[R]]:
        """Store many jobs with overlapping confirms.

        Each call is a tuple or list of positional arguments, or a dict of keyword arguments. `calls` may be a
        generator, since it is read while jobs are sent. If a call is invalid, the jobs before it are stored. A note on
        every error says how many jobs are certainly stored.
        """
        if "id" in self.given:
            raise OptionInvalid(
                f"option id={self.given['id']!r} cannot be used with enqueue_many, which creates several jobs. Leave"
                " it out."
            )
        return _client().enqueue_many(((self.definition, *split_arguments(call)) for call in calls), **self.given)

    def enqueue_in(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Like `enqueue`, for a job that runs after a delay in seconds or as a timedelta. Also raises OptionInvalid."""
        # The delay starts now, because the first call in a process imports the client, which takes up to a second.
        called_at, client = clock.now(), _client()
        run_at = called_at + wait if (wait := delay_seconds(delay)) else None
        options = {**self.given, "delay": None if wait else 0, "run_at": run_at}
        return client.enqueue(self.definition, args, kwargs, **options)

    def enqueue_at(self, at: Instant, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Like `enqueue`, for a job that runs at an instant (aware datetime or Unix seconds). Also raises
        OptionInvalid.
        """
        if at is None:
            raise OptionInvalid("enqueue_at got None as the time. Pass a time, or call enqueue to run the job now.")
        options = {**self.given, "delay": None, "run_at": at}
        return _client().enqueue(self.definition, args, kwargs, **options)

    async def enqueue_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Like `enqueue`, without blocking the event loop."""
        return await _client().enqueue_async(self.definition, args, kwargs, **self.given)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given.items() if value)
        return f"<palermo job {self.definition.name}{f' with {given}' if given else ''}>"


class DecoratedJob(Enqueuer[P, R]):
    """The methods that the decorator adds to a function or class."""

    def options(self, **options: Unpack[StepOptions]) -> Enqueuer[P, R]:
        """Return the job with other options for enqueuing. See the table "Options of a job".

        Raises OptionInvalid, QueueNameInvalid, IdInvalid.
        """
        return Enqueuer(self.definition, **read_options(options, STEP_OPTIONS, ".options()"))

    def dequeue(self, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Remove all waiting jobs with these arguments from the job's queue, and return their number."""
        from palermo.client.actor import Actor
        from palermo.client.dequeue import dequeue

        self.definition.bind(args, kwargs)
        client = _client()
        return dequeue(client, self.definition, args, kwargs, actor=Actor.here("python"), ask=client.run)


class FunctionJob(DecoratedJob[P, R], Generic[P, C, R]):
    """A decorated function. Calling it runs the function; `enqueue` enqueues a job."""

    __name__: str

    def __init__(self, definition: JobDefinition, function: Callable[P, C]) -> None:
        super().__init__(definition)
        self._function = function
        update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        return self._function(*args, **kwargs)

    def hook(self, function: F) -> F:
        """Register a hook for this job by the function's name. The hook takes the job's arguments."""
        return self.definition.own_hooks.add(function)

    def __reduce__(self) -> str:
        return self.definition.target.__qualname__  # pickled by name, like a function


if TYPE_CHECKING:

    class ClassJob(DecoratedJob[P, R]):
        """A decorated class, as `palermo.job(...)` returns it."""

        def __call__(self) -> Any: ...

    class BatchJob(DecoratedJob[[T], None], Generic[T, L, C]):
        """A decorated batch function. `enqueue` takes one item; calling it directly takes the whole list."""

        def __call__(self, items: L, /) -> C: ...

        def hook(self, function: F) -> F: ...


class JobClass:
    """Base class that declares the decorator's methods for type checkers.

    mypy ignores the return type of class decorators. Derive job classes from this class, or enable the plugin
    `palermo.mypy_plugin`.
    """

    definition: JobDefinition

    @overload
    @classmethod
    def enqueue(cls: type[AwaitsProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    @classmethod
    def enqueue(cls: type[HasProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @classmethod
    def enqueue(cls, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """See FunctionJob."""
        raise _undecorated(cls)

    @overload
    @classmethod
    def enqueue_in(cls: type[AwaitsProcess[P, R]], delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    @classmethod
    def enqueue_in(cls: type[HasProcess[P, R]], delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @classmethod
    def enqueue_in(cls, delay: Duration, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """See FunctionJob."""
        raise _undecorated(cls)

    @overload
    @classmethod
    def enqueue_at(cls: type[AwaitsProcess[P, R]], at: Instant, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    @classmethod
    def enqueue_at(cls: type[HasProcess[P, R]], at: Instant, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @classmethod
    def enqueue_at(cls, at: Instant, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """See FunctionJob."""
        raise _undecorated(cls)

    @overload
    @classmethod
    def enqueue_many(cls: type[AwaitsProcess[P, R]], calls: Iterable[Arguments]) -> list[Job[R]]: ...
    @overload
    @classmethod
    def enqueue_many(cls: type[HasProcess[P, R]], calls: Iterable[Arguments]) -> list[Job[R]]: ...
    @classmethod
    def enqueue_many(cls, calls: Iterable[Arguments]) -> list[Job[Any]]:
        """See FunctionJob."""
        raise _undecorated(cls)

    @overload
    @classmethod
    async def enqueue_async(cls: type[AwaitsProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    @classmethod
    async def enqueue_async(cls: type[HasProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @classmethod
    async def enqueue_async(cls, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """See FunctionJob."""
        raise _undecorated(cls)

    @overload
    @classmethod
    def options(cls: type[AwaitsProcess[P, R]], **options: Unpack[StepOptions]) -> Enqueuer[P, R]: ...
    @overload
    @classmethod
    def options(cls: type[HasProcess[P, R]], **options: Unpack[StepOptions]) -> Enqueuer[P, R]: ...
    @classmethod
    def options(cls, **options: Unpack[StepOptions]) -> Enqueuer[..., Any]:
        """See FunctionJob."""
        raise _undecorated(cls)

    @classmethod
    def dequeue(cls: type[HasProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """See FunctionJob."""
        raise _undecorated(cls)


#: The attributes that the decorator adds to a class.
_ADDED = ("definition", *(name for name in vars(JobClass) if not name.startswith("_")))


class _ClassAttribute:
    """An attribute added by the decorator. Subclasses don't inherit it, because each needs its own declaration."""

    def __init__(self, definition: JobDefinition, value: Any) -> None:
        self._definition = definition
        self._value = value

    def __get__(self, instance: object, owner: type) -> Any:
        if owner is not self._definition.target:
            raise AttributeError(
                f"class {owner.__qualname__!r} is not a job, although its base class {self._definition.name!r} is one."
                " Decorate it with @palermo.job too."
            )
        return self._value


class JobDecorator(Protocol):
    """The decorator that `palermo.job(...)` returns."""

    @overload
    def __call__(self, target: type[K], /) -> type[K]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: type[AwaitsProcess[P, R]], /) -> "ClassJob[P, R]": ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: type[HasProcess[P, R]], /) -> "ClassJob[P, R]": ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionJob[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> FunctionJob[P, R, R]: ...


class BatchDecorator(Protocol):
    """The decorator that `palermo.job(batch=…)` returns."""

    @overload
    def __call__(self, target: type[TakesBatches[T]], /) -> "ClassJob[[T], None]": ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[[list[T]], C], /) -> "BatchJob[T, list[T], C]": ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: "Callable[[Batch[T]], C]", /) -> "BatchJob[T, Batch[T], C]": ...


@overload
def job(target: type[K], /) -> type[K]: ...  # type: ignore[overload-overlap]
@overload
def job(target: type[AwaitsProcess[P, R]], /) -> "ClassJob[P, R]": ...  # type: ignore[overload-overlap]
@overload
def job(target: type[HasProcess[P, R]], /) -> "ClassJob[P, R]": ...  # type: ignore[overload-overlap]
@overload
def job(target: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionJob[P, Coroutine[Any, Any, R], R]: ...
@overload
def job(target: Callable[P, R], /) -> FunctionJob[P, R, R]: ...
@overload
def job(**options: Unpack[BatchOptions]) -> BatchDecorator: ...
@overload
def job(**options: Unpack[JobOptions]) -> JobDecorator: ...
def job(target: Any = None, /, **options: Any) -> Any:
    """Declare a function, or a class with `process`, as a job. Can be used with or without parentheses.

    The table "Options of a job" in docs/reference/api.md lists the options, and docs/learn/jobs.md links to a guide for
    each.

    Raises OptionInvalid, QueueNameInvalid, JobNameTaken.
    """
    given = read_options(options, JOB_OPTIONS, "@palermo.job")
    return declare(target, given) if target is not None else lambda target: declare(target, given)


def declare(target: Any, options: Mapping[str, Any], kind: type[FunctionJob[..., Any, Any]] = FunctionJob) -> Any:
    """Declare and register a function or class as a job, with options from `read_options`.

    A decorated function becomes an object of class `kind`. Raises OptionInvalid, QueueNameInvalid, JobNameTaken.
    """
    definition = define(target, **{name: value for name, value in options.items() if name not in RECURRING_OPTIONS})
    if any(name in options for name in RECURRING_OPTIONS):
        definition = replace(definition, recurring=recurring_job(definition, options))
    if not definition.is_class:
        registry.register(definition)
        return kind(definition, target)
    decorated: DecoratedJob[Any, Any] = DecoratedJob(definition)
    for name in _ADDED:
        taken = vars(target).get(name)
        if taken is not None and not isinstance(taken, _ClassAttribute):
            raise OptionInvalid(
                f"class {target.__qualname__!r} already has an attribute {name!r}, but @palermo.job adds one of that"
                " name. Rename yours."
            )
    registry.register(definition)
    for name in _ADDED:
        setattr(target, name, _ClassAttribute(definition, getattr(decorated, name)))
    return target


def _import_client() -> "Client":
    global _client
    module = sys.modules.get("palermo.client.client")
    if module is None or not hasattr(module, "default_client"):  # not imported yet, or only partly
        with forking.guard:
            module = import_module("palermo.client.client")
    _client = module.default_client
    return _client()


#: Returns the default client. The first call imports its module.
_client: "Callable[[], Client]" = _import_client


def _undecorated(cls: type) -> OptionInvalid:
    return OptionInvalid(f"class {cls.__qualname__!r} is not a job yet. Decorate it with @palermo.job.")
