"""The jobs a program has declared, by their wire names."""

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

from palermo.core.topology import DEFAULT_QUEUE
from palermo.core.values import dataclass
from palermo.errors import ArgumentsInvalid, JobNameTaken, JobNotFound, OptionInvalid
from palermo.hooks import JOB_HOOKS, Hooks, check_hook, kind_of

if TYPE_CHECKING:
    from palermo.core.decision import Errors, Policy
    from palermo.recurring import Recurring

MAX_JOB_NAME_BYTES = 255


@dataclass(frozen=True, kw_only=True)
class Subscribes:
    """Which events a job handles, and as which group."""

    group: str
    #: Patterns of topics, sorted.
    topics: tuple[str, ...]
    #: Whether the group begins with the events that are kept when it first subscribes.
    from_start: bool = False

    def queue(self, exchange: str, prefix: str) -> str:
        """Where the group's events wait. Raises QueueNameInvalid."""
        from palermo.core.topics import group_queue

        return group_queue(exchange, prefix, self.group)


@dataclass(frozen=True, kw_only=True, eq=False)
class JobDefinition:
    """A job as its decorator declared it."""

    #: The wire name: `package.module.QualName`, or the one given.
    name: str
    #: What was decorated: a function, or a class with `process`.
    target: Callable[..., Any]
    #: The parameters of an enqueue: the function's, or those of `process` without self.
    signature: inspect.Signature
    is_class: bool
    #: None where the setting default_queue decides.
    queue: str | None = None
    #: "one" for a job that gets the decoded body as its single argument, whatever it is; else "".
    arguments: str = ""
    #: None where the setting of that name decides, here and in the next two.
    serializer: str | None = None
    compression: str | None = None
    sign: bool | None = None
    #: Seconds that one run may take; None where the worker's own default decides.
    timeout: float | None = None
    #: Seconds after which a run that has not ended is killed and the job runs again; None for never.
    lock_for: float | None = None
    #: What goes first within its queue, from 0 to 9; None for 0.
    priority: int | None = None
    #: How many may run at once over all workers, of the job or of each key, and how often; None for any number.
    limit: int | None = None
    limit_key: str | Callable[..., str] | None = None
    rate: str | None = None
    #: Seconds from its enqueuing within which it must be started; None for no limit.
    expires: float | None = None
    #: Seconds that it waits before it may run, unless an enqueue says otherwise; None for not at all.
    delay: float | None = None
    #: Whether what it returns is kept in the journal, unless an enqueue says otherwise; None for no.
    keep_result: bool | None = None
    #: How long one of its jobs keeps others of the same key from being enqueued; what happens to those; and which key
    #: it is: see palermo.options.ManyOptions, here and in the next five.
    unique: str | float | None = None
    unique_key: str | Callable[..., str] | None = None
    on_duplicate: str | None = None
    dedupe: float | None = None
    debounce: float | None = None
    throttle: float | None = None
    #: Whose job it is: a name, or a function of the arguments that gives one; None for nobody's.
    tenant: str | Callable[..., str] | None = None
    #: How much of the queue that tenant is to have, beside others' 1; None for 1.
    share: float | None = None
    #: How many are run in one call at most, which gets a list; None for a job that runs one by one.
    batch: int | None = None
    #: Seconds that the first of a batch waits for others.
    batch_wait: float = 0.0
    #: What is done when it fails, as declared; see `policy`.
    retries: int | None = None
    backoff: Any = None
    retry_for: float | None = None
    retry_on: "Errors | None" = None
    discard_on: "Errors | None" = None
    #: When it runs of itself, again and again; None for never.
    recurring: "Recurring | None" = None
    #: The events that it handles; None for a job that is enqueued.
    subscribes: Subscribes | None = None
    #: A function job's own hooks; a class has them as methods.
    own_hooks: Hooks = field(default_factory=lambda: Hooks(JOB_HOOKS), repr=False)

    @property
    def one(self) -> bool:
        """Whether the decoded body is the single argument."""
        return self.arguments == "one"

    @cached_property
    def policy(self) -> "Policy":
        """Whether and when it is tried again."""
        from palermo.core.decision import policy

        return policy(
            retries=self.retries,
            backoff=self.backoff,
            retry_for=self.retry_for,
            retry_on=self.retry_on,
            discard_on=self.discard_on,
        )

    @cached_property
    def classes(self) -> Mapping[str, type]:
        """Dataclasses and Enums that the annotations name, by dotted name: those a body may be decoded to."""
        from palermo.classes import classes_in

        return classes_in(hint for name, hint in self._hints.items() if name != "return")

    @cached_property
    def result_classes(self) -> Mapping[str, type]:
        """The same of the annotation of what it returns: those that its result may be decoded to."""
        from palermo.classes import classes_in

        return classes_in(hint for name, hint in self._hints.items() if name == "return")

    @property
    def _hints(self) -> Mapping[str, Any]:
        code = getattr(self.target, "process", None) if self.is_class else self.target
        try:
            return get_type_hints(code)
        except Exception:
            # A name that exists for the type checker only, or not yet: such a parameter restores nothing.
            hints = {parameter.name: parameter.annotation for parameter in self.signature.parameters.values()}
            hints["return"] = self.signature.return_annotation
            empty = inspect.Parameter.empty
            return {name: hint for name, hint in hints.items() if not isinstance(hint, str) and hint is not empty}

    @cached_property
    def declares(self) -> Mapping[str, Any]:
        """What was declared, by name: what an enqueue goes by where it does not say otherwise."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise ArgumentsInvalid unless the job can be called with these."""
        least, most = self._by_position
        if not kwargs and least <= len(args) <= most and not self.one:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsInvalid(
                f"arguments do not fit job {self.name!r}: {error}. It takes {self.signature}."
            ) from None
        if self.one and (kwargs or len(args) != 1):
            raise ArgumentsInvalid(
                f'job {self.name!r} is declared with arguments="one": give it exactly one argument, by position.'
            )

    @cached_property
    def _by_position(self) -> tuple[int, int]:
        """How many arguments it takes at least and at most, if all are given by position; beyond that see `bind`."""
        parameters = self.signature.parameters.values()
        if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
            return 1, 0
        named = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        return sum(one.default is one.empty for one in named), len(named)

    def instantiate(self) -> object | None:
        """A fresh object of a class job, for one run; None for a function job."""
        return self.target() if self.is_class else None

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any], instance: object | None = None) -> Any:
        """Run the job, on a fresh object unless given one; a coroutine function gives its coroutine."""
        if not self.is_class:
            return self.target(*args, **kwargs)
        made: Any = self.target() if instance is None else instance
        return made.process(*args, **kwargs)

    def hooks(self, kind: str, instance: object | None = None) -> tuple[Callable[..., Any], ...]:
        """The job's own hooks of one kind, inherited ones too, by name; to be called with the job's arguments.

        Methods that need an object get `instance`, or one made for them.
        """
        if not self.is_class:
            return self.own_hooks.of(kind)
        names = self._method_hooks.get(kind)
        if not names:
            return ()
        if instance is None and any(bound for _, bound in names):
            instance = self.instantiate()
        return tuple(getattr(instance if bound else self.target, name) for name, bound in names)

    @cached_property
    def _method_hooks(self) -> Mapping[str, tuple[tuple[str, bool], ...]]:
        """By kind, in order: the class's hook methods, and whether they need an object."""
        found: dict[str, list[tuple[str, bool]]] = {}
        for name in dir(self.target):  # sorted
            kind = kind_of(name, JOB_HOOKS)
            raw = inspect.getattr_static(self.target, name) if kind else None
            if kind and (callable(raw) or isinstance(raw, (staticmethod, classmethod))):
                check_hook(name, getattr(raw, "__func__", raw), JOB_HOOKS)
                found.setdefault(kind, []).append((name, isinstance(raw, types.FunctionType)))
        return {kind: tuple(names) for kind, names in found.items()}

    @property
    def origin(self) -> tuple[str, str]:
        """The file and the name in it where the job was written: the same again after a reload."""
        space = _globals(self.target)
        return str(space.get("__file__") or space.get("__name__")), self.target.__qualname__


class Registry:
    """Jobs by wire name: all that this process can run."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobDefinition] = {}

    def register(self, definition: JobDefinition) -> None:
        """Add a job; the same code imported again takes its own place.

        Raises JobNameTaken where other code has the name.
        """
        known = self._jobs.get(definition.name)
        if known is not None and known.origin != definition.origin:
            if definition.subscribes is not None and known.subscribes is not None:
                raise JobNameTaken(
                    f"group {definition.name!r} has two functions: {_place(known)} and {_place(definition)}. A group"
                    " handles an event once; let the other be a group of its own."
                )
            raise JobNameTaken(
                f"job name {definition.name!r} is declared twice: {_place(known)} and {_place(definition)}."
                " Give one of them another with @palermo.job(name=...)."
            )
        self._jobs[definition.name] = definition

    def unregister(self, name: str) -> None:
        """Forget a job; nothing happens if it is not there."""
        self._jobs.pop(name, None)

    def get(self, name: str) -> JobDefinition:
        """The job of this name. Raises JobNotFound."""
        try:
            return self._jobs[name]
        except KeyError:
            module = name.rpartition(".")[0]
            start = f"Start it with `palermo worker {module}`, or check" if module else "Check"
            raise JobNotFound(f"no job {name!r} in this worker. {start} the name in @palermo.job.") from None

    def find(self, name: str) -> JobDefinition | None:
        """The job of this name, or None."""
        return self._jobs.get(name)

    def names(self) -> tuple[str, ...]:
        """All wire names, sorted."""
        return tuple(sorted(self._jobs))

    def queues(self, default: str = DEFAULT_QUEUE) -> tuple[str, ...]:
        """The queues that the jobs name, sorted; `default` stands for those that name none.

        Those of groups that subscribe to events are not among them.
        """
        return tuple(sorted({one.queue or default for one in self._jobs.values() if one.subscribes is None}))


#: Options of which a job that takes batches can have none.
_ALONE = ("unique", "dedupe", "limit", "rate", "lock_for")


def declaring(jobs: Registry, option: str) -> dict[str, Any]:
    """The value of one option, by job, for the jobs that declare it."""
    found = {name: getattr(jobs.get(name), option) for name in jobs.names()}
    return {name: value for name, value in found.items() if value is not None}


def define(target: Any, *, name: str | None = None, **declared: Any) -> JobDefinition:
    """The definition of what was decorated. Raises OptionInvalid for what cannot be a job."""
    is_class = isinstance(target, type)
    if not is_class and not isinstance(target, types.FunctionType):
        raise OptionInvalid(
            f"{target!r} cannot be a job: @palermo.job goes on a function, or on a class with a method `process`."
        )
    process = _process_of(target) if is_class else target
    if inspect.isgeneratorfunction(process) or inspect.isasyncgenfunction(process):
        raise OptionInvalid(
            f"job {target.__qualname__!r} is a generator; a job is called once and its yields would not run."
        )
    if declared.get("batch") is not None:
        _check_batch(target, inspect.signature(process), declared)
    return JobDefinition(
        name=wire_name(target) if name is None else check_job_name(name),
        target=target,
        signature=inspect.signature(process),
        is_class=is_class,
        **declared,
    )


def _check_batch(target: Any, signature: inspect.Signature, declared: Mapping[str, Any]) -> None:
    """Raise OptionInvalid unless what is declared can be called with a list."""
    if len(signature.parameters) != 1:
        raise OptionInvalid(
            f"job {target.__qualname__!r} takes batches, and so must take one argument, the list of what was enqueued."
            f" It takes {signature}."
        )
    check_batched(target.__qualname__, declared)


def check_batched(job: str, options: Mapping[str, Any]) -> None:
    """Raise OptionInvalid for what one job of a batch cannot have: it would wait for it, or end of it, alone."""
    if options.get("keep_result"):
        raise OptionInvalid(f"job {job!r} takes batches: what it returns cannot be kept as a job's result.")
    for name in _ALONE:
        if options.get(name) is not None:
            raise OptionInvalid(
                f"job {job!r} takes batches, which {name} does not go with: the others of a call would wait, or be"
                " killed, with one of them. Leave out one of the two."
            )


def wire_name(target: Any) -> str:
    """`package.module.QualName`; in `__main__`, by the module's real path, so that a worker that imports it agrees."""
    module: str = target.__module__
    if module in ("__main__", "__mp_main__"):
        space = _globals(target)
        spec = space.get("__spec__")
        file = space.get("__file__")
        if spec is not None:
            module = spec.name
        elif file:
            module = str(file).replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return f"{module}.{target.__qualname__}"


def check_job_name(name: object) -> str:
    """The name, if it may be a job's wire name. Raises OptionInvalid."""
    rule = "A job's name is text of 1 to 255 bytes without blanks at the ends"
    if not isinstance(name, str):
        raise OptionInvalid(f"job name {name!r} is not text. {rule}.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionInvalid(f"job name {name!r} cannot be written as UTF-8. {rule}.") from None
    if not 1 <= size <= MAX_JOB_NAME_BYTES or name != name.strip():
        raise OptionInvalid(f"job name {name[:80]!r} ({size} bytes) cannot be used. {rule}.")
    return name


def nearest(name: str, known: Iterable[str]) -> str:
    """A blank and a question whether the closest of the known names was meant; "" if none is close."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def _process_of(cls: type) -> Callable[..., Any]:
    """What `process` is to a caller who has an object of the class."""
    raw = inspect.getattr_static(cls, "process", None)
    if raw is None:
        raise OptionInvalid(f"class {cls.__qualname__!r} has no method `process`; it is what a worker calls.")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise OptionInvalid(
            f"class {cls.__qualname__!r} cannot be made without arguments ({error}); a worker makes one object per run."
        ) from None
    except ValueError:
        pass  # a class written in C has no signature to look at
    if isinstance(raw, (staticmethod, classmethod)):
        found: Callable[..., Any] = getattr(cls, "process")  # noqa: B009
        return found
    if not isinstance(raw, types.FunctionType):
        raise OptionInvalid(f"`process` of class {cls.__qualname__!r} is not a method.")
    # A bound method without an object: partial() would not drop `self` from the signature by name.
    return types.MethodType(raw, object.__new__(object))


def _globals(target: Any) -> Mapping[str, Any]:
    if isinstance(target, types.FunctionType):
        inner: Any = inspect.unwrap(target)  # a wrapper's globals are those of whoever wrote the wrapper
        found: Mapping[str, Any] = getattr(inner, "__globals__", target.__globals__)
        return found
    module = sys.modules.get(target.__module__)
    return vars(module) if module else {"__name__": target.__module__}


def _place(definition: JobDefinition) -> str:
    file, name = definition.origin
    return f"{name} in {file}"
