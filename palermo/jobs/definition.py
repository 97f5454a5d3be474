"""The definition of a job: its declared options, and how it is called."""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ForwardRef, get_type_hints

from msgspec import Struct

from palermo.errors import ArgumentsInvalid, OptionInvalid
from palermo.jobs.hooks import JOB_HOOKS, Hooks, check_hook, check_methods, kind_of
from palermo.jobs.models import JobModels
from palermo.jobs.options import CARRIED_OPTIONS, DECLARED_OPTIONS, ONE_BY_ONE, RECURRING_OPTIONS, split_arguments
from palermo.jobs.origin import Origin, signature_of, variables_of

if TYPE_CHECKING:
    from palermo.contract.recurring import RecurringJob
    from palermo.contract.unique_jobs import UniqueJob
    from palermo.core.retry_policy import RetryPolicy
    from palermo.settings.settings import Settings

MAX_JOB_NAME_BYTES = 255


class JobSubscription(Struct, frozen=True, kw_only=True):
    """The events that a job handles, and its group."""

    group: str
    #: Patterns of topics, sorted.
    topics: tuple[str, ...]
    #: Whether a new group starts with the events kept so far.
    from_start: bool = False

    def queue(self, exchange: str, prefix: str) -> str:
        """The queue where the group's events wait. Raises QueueNameInvalid."""
        from palermo.core.topics import group_queue

        return group_queue(exchange, prefix, self.group)


@dataclass(frozen=True, kw_only=True, eq=False)
class JobDefinition:
    #: The wire name: `package.module.QualName`, or the name given to the decorator.
    name: str
    #: The decorated function, or class with `process`.
    target: Callable[..., Any]
    #: The parameters of the function, or of `process` without self.
    signature: inspect.Signature
    is_class: bool
    origin: Origin = field(repr=False)
    #: The declared options after conversion. Each of DECLARED_OPTIONS is also an attribute; None leaves the choice to
    #: the settings or the enqueue.
    options: Mapping[str, Any]
    #: Its schedule; None if it isn't recurring.
    recurring: "RecurringJob | None" = None
    #: The events that it handles; None for a job that is enqueued.
    subscribes: JobSubscription | None = None
    #: Whether it gets a `palermo.Workflow` as its first argument, and adds steps to it.
    workflow: bool = False
    #: The hooks of a function. A class has them as methods.
    own_hooks: Hooks = field(default_factory=lambda: Hooks(JOB_HOOKS), repr=False)

    if TYPE_CHECKING:

        def __getattr__(self, option: str) -> Any: ...

    def __post_init__(self) -> None:
        vars(self).update({**dict.fromkeys(DECLARED_OPTIONS), **self.options})

    def without_flow(self) -> "JobDefinition":
        """Return a copy for a workflow function without its first parameter, which callers don't pass."""
        parameters = list(self.signature.parameters.values())
        if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            raise OptionInvalid(
                f"workflow {self.name!r} has no parameter for the flow. Add it as the first one: def run(flow, …)."
            )
        return replace(self, signature=self.signature.replace(parameters=parameters[1:]))

    def queue_in(self, settings: "Settings") -> str:
        """The job's default queue. Raises QueueNameInvalid."""
        if self.subscribes is not None:
            return self.subscribes.queue(settings.exchange, settings.prefix)
        queue: str | None = self.queue
        return queue or settings.default_queue

    @cached_property
    def one(self) -> bool:
        """Whether the decoded body is the job's only argument."""
        return bool(self.arguments == "one")

    @cached_property
    def carried(self) -> Mapping[str, Any]:
        """The declared options that are sent with each message."""
        return {name: value for name, value in self.options.items() if name in CARRIED_OPTIONS}

    @cached_property
    def policy(self) -> "RetryPolicy":
        from palermo.core.retry_policy import make_policy

        return make_policy(
            retries=self.retries,
            backoff=self.backoff,
            retry_for=self.retry_for,
            retry_on=self.retry_on,
            discard_on=self.discard_on,
        )

    @cached_property
    def classes(self) -> Mapping[str, type]:
        """The dataclasses and enums in the parameter annotations, by dotted name. Bodies may be decoded to these."""
        from palermo.contract.class_hints import classes_in

        return classes_in(hint for name, hint in self._hints.items() if name != "return")

    @cached_property
    def result_classes(self) -> Mapping[str, type]:
        """The same for the return annotation, for decoding results."""
        from palermo.contract.class_hints import classes_in

        return classes_in(hint for name, hint in self._hints.items() if name == "return")

    @cached_property
    def models(self) -> JobModels | None:
        """The pydantic models in the annotations."""
        return JobModels.of(self.name, self._hints, self.signature, batched=self.batch is not None)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments with models converted to JSON values. Raises ArgumentsInvalid for an invalid model."""
        if self.models is None:
            return args, kwargs
        return self.models.written(*self.models.validated(args, kwargs, decoded=False))

    @cached_property
    def raw(self) -> type[bytes] | type[str] | None:
        """The annotation of the only parameter if it is bytes or str. A body without a media type is then passed
        unchanged.
        """
        hints = [hint for name, hint in self._hints.items() if name != "return"]
        if len(self.signature.parameters) != 1 or len(hints) != 1:
            return None
        return bytes if hints[0] is bytes else str if hints[0] is str else None

    @property
    def _hints(self) -> Mapping[str, Any]:
        code = getattr(self.target, "process", None) if self.is_class else self.target
        try:
            known = {*self.signature.parameters, "return"}
            return {name: hint for name, hint in get_type_hints(code).items() if name in known}
        except Exception:
            # The annotation's name may exist only for type checkers, or not be defined yet. Such a parameter restores
            # no class.
            hints = {parameter.name: parameter.annotation for parameter in self.signature.parameters.values()}
            hints["return"] = self.signature.return_annotation
            empty = inspect.Parameter.empty
            unknown = str | ForwardRef
            return {name: hint for name, hint in hints.items() if not isinstance(hint, unknown) and hint is not empty}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise ArgumentsInvalid unless the job can be called with these arguments."""
        least, most = self._by_position
        if not kwargs and least <= len(args) <= most and not self.one:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            # depends on the wording of inspect.Signature.bind
            is_unknown = "unexpected keyword argument" in str(error)
            advice = " Options, such as retries, go to .options(…)." if is_unknown else ""
            raise ArgumentsInvalid(
                f"wrong arguments for job {self.name!r}: {error}. Its parameters are {self.signature}.{advice}"
            ) from None
        if self.one and (kwargs or len(args) != 1):
            raise ArgumentsInvalid(
                f'job {self.name!r} is declared with arguments="one". Pass exactly one positional argument.'
            )

    @cached_property
    def _by_position(self) -> tuple[int, int]:
        """Minimum and maximum number of arguments if only positional ones are possible; otherwise `bind` decides."""
        parameters = self.signature.parameters.values()
        if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
            return 1, 0
        named = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        return sum(one.default is one.empty for one in named), len(named)

    def hooks(self, kind: str, instance: object | None = None) -> tuple[Callable[..., Any], ...]:
        """Return a class's hooks of one kind, including inherited ones, by name. They take the job's arguments.

        Hooks that are instance methods are bound to `instance`, or else to a new object.
        """
        names = self._method_hooks.get(kind)
        if not names:
            return ()
        if instance is None and any(bound for _, bound in names):
            instance = self.target()
        return tuple(getattr(instance if bound else self.target, name) for name, bound in names)

    @cached_property
    def _method_hooks(self) -> Mapping[str, tuple[tuple[str, bool], ...]]:
        """The class's hook methods by kind, in order, each with whether it is an instance method."""
        found: dict[str, list[tuple[str, bool]]] = {}
        for name in dir(self.target):  # sorted
            kind = kind_of(name, JOB_HOOKS)
            raw = inspect.getattr_static(self.target, name) if kind else None
            if kind and (callable(raw) or isinstance(raw, (staticmethod, classmethod))):
                check_hook(name, getattr(raw, "__func__", raw), JOB_HOOKS)
                found.setdefault(kind, []).append((name, isinstance(raw, types.FunctionType)))
        return {kind: tuple(names) for kind, names in found.items()}

    @property
    def as_unique(self) -> "UniqueJob | None":
        """The uniqueness rules to announce for a unique, debounced or throttled job; None for any other job."""
        from palermo.contract.unique_jobs import KEY_OPTIONS, KEYED_BY, UniqueJob

        if not any(name in self.options for name in KEYED_BY):
            return None
        return UniqueJob.of(self.name, {name: getattr(self, name) for name in KEY_OPTIONS}, self.signature)


def define(target: Any, *, name: str | None = None, **declared: Any) -> JobDefinition:
    """Define a job from a decorated function or class. Raises OptionInvalid for an object that can't be a job."""
    is_class = isinstance(target, type)
    if isinstance(target, staticmethod):
        raise OptionInvalid(
            f"{target.__qualname__!r} is a staticmethod, not a function. Write @staticmethod above @palermo.job."
        )
    if isinstance(target, classmethod) or (isinstance(target, types.FunctionType) and _is_method(target)):
        raise OptionInvalid(
            f"{target.__qualname__!r} is a method, but a worker has no object to call it on. Use a function, or"
            " decorate a class that has a method `process`."
        )
    if not is_class and not isinstance(target, types.FunctionType):
        raise OptionInvalid(
            f"{target!r} cannot be a job. Use @palermo.job on a function, or on a class with a method `process`."
        )
    if name is None and target.__name__ == "<lambda>":
        # All lambdas of a module have the same name, so each would replace the previous one.
        raise OptionInvalid("a lambda has no name. Write the job with def, or give it a name with name=….")
    process = _process_of(target) if is_class else target
    if is_class:
        check_methods(target)
    if inspect.isgeneratorfunction(process) or inspect.isasyncgenfunction(process):
        raise OptionInvalid(
            f"job {target.__qualname__!r} is a generator function, whose body would never run. Return a value instead"
            " of yielding."
        )
    if declared.get("default") and declared.get("batch") is not None:
        raise OptionInvalid(
            f"job {target.__qualname__!r} has both default and batch, which cannot be combined. Leave one out."
        )
    if declared.get("batch") is not None:
        _check_batch(target, signature_of(process), declared)
    definition = JobDefinition(
        name=wire_name(target) if name is None else check_job_name(name),
        target=target,
        signature=signature_of(process),
        is_class=is_class,
        origin=Origin.of(target),
        options={name: value for name, value in declared.items() if name in DECLARED_OPTIONS and value is not None},
        subscribes=declared.get("subscribes"),
        workflow=declared.get("workflow", False),
    )
    return definition.without_flow() if definition.workflow else definition


def _is_method(function: types.FunctionType) -> bool:
    """Whether a function is defined in a class and takes the object or class first."""
    code = function.__code__
    first = code.co_varnames[0] if code.co_argcount else ""
    return first in ("self", "cls") and "." in function.__qualname__.rpartition("<locals>.")[2]


def recurring_job(definition: JobDefinition, options: Mapping[str, Any]) -> "RecurringJob | None":
    """Return the recurring job declared by the options of `@palermo.job`, or None.

    Raises OptionInvalid, or ArgumentsInvalid for arguments that don't match the signature.
    """
    given = {name: value for name, value in options.items() if name in RECURRING_OPTIONS and value is not None}
    if not given:
        return None
    from palermo.contract import recurring

    if not given.keys() & {"cron", "every"}:
        raise OptionInvalid(f"job {definition.name!r}: {next(iter(given))}= has no effect without cron= or every=.")
    args, kwargs = split_arguments(given.get("schedule_args", ()), "schedule_args")
    try:
        definition.bind(args, kwargs)
    except ArgumentsInvalid as error:
        raise ArgumentsInvalid(f"{error} Set the arguments of a recurring job with schedule_args=.") from None
    name = given.get("schedule_name", definition.name)
    return recurring.recurring_job(name, given, job=definition.name, args=tuple(args), kwargs=dict(kwargs))


def _check_batch(target: Any, signature: inspect.Signature, declared: Mapping[str, Any]) -> None:
    """Raise OptionInvalid unless the job can be called with one list."""
    if len(signature.parameters) != 1:
        raise OptionInvalid(
            f"job {target.__qualname__!r} takes batches, so it needs exactly one parameter, the list of calls. It has"
            f" {signature}."
        )
    check_batched(target.__qualname__, declared)


def check_batched(job: str, options: Mapping[str, Any]) -> None:
    """Raise OptionInvalid for options that a batch job can't have, because they make an individual job wait or end."""
    if options.get("keep_result"):
        raise OptionInvalid(f"job {job!r} takes batches, so it cannot have keep_result. Leave it out.")
    for name in ONE_BY_ONE:
        if options.get(name) is not None:
            raise OptionInvalid(
                f"job {job!r} takes batches, which cannot be combined with {name}, because one job would delay or kill"
                " the others of its batch. Leave one out."
            )


def wire_name(target: Any) -> str:
    """Return `package.module.QualName`. In `__main__` the module's real path is used, so that workers that import it
    agree.
    """
    module: str = target.__module__
    if module in ("__main__", "__mp_main__"):
        space = variables_of(target)
        spec = space.get("__spec__")
        file = space.get("__file__")
        if spec is not None:
            module = spec.name
        elif file:
            module = str(file).replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return f"{module}.{target.__qualname__}"


def check_job_name(name: object) -> str:
    """Return the name if it is valid as a wire name. Raises OptionInvalid."""
    rule = "A job's name is text of 1 to 255 bytes without spaces at either end"
    if not isinstance(name, str):
        raise OptionInvalid(f"job name {name!r} is not a string. {rule}.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionInvalid(f"job name {name!r} cannot be encoded as UTF-8. {rule}.") from None
    if not 1 <= size <= MAX_JOB_NAME_BYTES or name != name.strip():
        raise OptionInvalid(f"job name {name[:80]!r} ({size} bytes) cannot be used. {rule}.")
    return name


def _process_of(cls: type) -> Callable[..., Any]:
    """Return `process` as called on an object of the class."""
    raw = inspect.getattr_static(cls, "process", None)
    if raw is None:
        raise OptionInvalid(f"class {cls.__qualname__!r} has no method `process`, which a worker calls. Add one.")
    try:
        signature_of(cls).bind()
    except TypeError as error:
        raise OptionInvalid(
            f"class {cls.__qualname__!r} cannot be created without arguments ({error}), but a worker creates an object"
            " for each run."
        ) from None
    except ValueError:
        pass  # a class written in C, without a signature
    if isinstance(raw, (staticmethod, classmethod)):
        found: Callable[..., Any] = getattr(cls, "process")  # noqa: B009
        return found
    if not isinstance(raw, types.FunctionType):
        raise OptionInvalid(f"`process` of class {cls.__qualname__!r} is not a method.")
    # Bound without a real object, because partial() would not remove `self` from the signature.
    return types.MethodType(raw, object.__new__(object))
