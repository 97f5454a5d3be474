"""Workflows: `@palermo.workflow`, and the object with which a job adds steps.

A workflow is a job that adds steps. The steps of a run are collected here and stored when the run ends. A run that
raises adds no steps.
"""

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec.structs import replace as with_fields

from palermo.client.decorator import AwaitsProcess, Enqueuer, FunctionJob, HasProcess, declare
from palermo.client.handle import Job
from palermo.client.job_message import JobCall, build_message, call_of
from palermo.client.prepare import new_id
from palermo.contract import clock
from palermo.contract.serialization import SIGNED, Encoded, Serializer
from palermo.core.header_json import dumps, loads
from palermo.core.lifecycle import StoredResult
from palermo.core.message import Message, to_headers
from palermo.core.step_values import Use, Value, pack, unpack
from palermo.core.times import Duration, due_at
from palermo.core.topics import OCTETS
from palermo.core.workflow import (
    MAX_ADDED,
    MAX_STEP_NAME,
    AddedStep,
    Graph,
    Member,
    StepJob,
    check_step_name,
    step_id,
    step_of,
)
from palermo.core.workflow_rules import Condition, Plan, When
from palermo.errors import BodyTooLarge, OptionInvalid
from palermo.jobs.current import parent_header
from palermo.jobs.definition import JobDefinition, define
from palermo.jobs.job_registry import registry
from palermo.jobs.models import MARK
from palermo.jobs.option_kinds import SECONDS
from palermo.jobs.options import ENQUEUE_OPTIONS, NOT_IN_STEPS, WORKFLOW_OPTIONS, WorkflowOptions, read_options
from palermo.tracing import trace_headers

if TYPE_CHECKING:
    from palermo.client.client import Client

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C")
T = TypeVar("T")

#: Maximum number of steps added by one run, and depth of nested workflows.
MAX_STEPS, MAX_DEPTH = 1_000, 32

#: Maximum depth at which outputs are found in a list or dict.
_DEPTH = 10

#: Palermo's own jobs: a workflow created without a function, and a map over a step's output.
READY, MAP = "palermo.workflow", "palermo.map"


class Step(Generic[R_co]):
    """A step that was added to a workflow."""

    def __init__(self, flow: "Building", plan: Plan) -> None:
        self.name = plan.name
        self.conditions = plan.after
        #: Number of a map's members; None for other steps.
        self.members = plan.members
        self._flow = flow

    @property
    def output(self) -> R_co:
        """A placeholder for the step's return value, to pass to a later step or to return."""
        return cast("R_co", OutputOf(self))

    @property
    def after(self) -> "list[Step[Any]]":
        """The steps that must end before this one."""
        names = dict.fromkeys(name for condition in self.conditions for name in condition.steps)
        return [self._flow.steps[name] for name in names]

    def is_in(self, flow: "Building") -> bool:
        return self._flow is flow

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class OutputOf:
    """Placeholder for a step's output."""

    def __init__(self, step: Step[Any]) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"<output of step {self.step.name!r}>"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"the output of step {self.step.name!r} cannot be used here, because the step has not run yet. Pass the"
            " output to another step, as an argument or in a list, tuple or dict, and use its value there."
        )

    __bool__ = __iter__ = __str__ = __format__ = __reduce__ = __contains__ = __getitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__


class Marks:
    """The marks for the outputs that are used in one value."""

    def __init__(self, flow: "Building") -> None:
        self._flow = flow
        self._text = f"{MARK}{new_id()}-"
        self._steps: list[Step[Any]] = []

    @property
    def text(self) -> str:
        """The prefix of its marks, or ""."""
        return self._text if self._steps else ""

    @property
    def uses(self) -> tuple[Use, ...]:
        """The outputs, in the order of their marks' numbers."""
        return tuple(Use(step.name, step.members) for step in self._steps)

    def put(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return the value with marks in place of outputs. Raises OptionInvalid if it contains a step."""
        match value:
            case OutputOf(step=step):
                if not step.is_in(self._flow):
                    raise OptionInvalid(f"{value!r} belongs to another workflow, and cannot be used in this one.")
                if step not in self._steps:
                    self._steps.append(step)
                return f"{self._text}{self._steps.index(step)}"
            case Step(name=name):
                raise OptionInvalid(f"step {name!r} was passed as a value. Pass its output: {name}.output.")
            case list() if depth:
                return [self.put(each, depth - 1) for each in value]
            case tuple() if depth and type(value) is tuple:
                return tuple(self.put(each, depth - 1) for each in value)
            case dict() if depth:
                return {key: self.put(each, depth - 1) for key, each in value.items()}
        return value


class Building:
    """The steps added by one run."""

    def __init__(self, id: str, path: str = "") -> None:
        """`path` is the path of the running step, or "" for the workflow's own run."""
        self.id = id
        self.prefix = f"{path}/" if path else ""
        self.steps: dict[str, Step[Any]] = {}
        self.deadline: float | None = None
        #: Headers of all steps: the parent job and the trace.
        self.headers = dict(parent_header())
        self._added: dict[str, AddedStep] = {}
        self._size = 0
        self._thread = threading.get_ident()
        self._closed = False

    def add(self, added: AddedStep) -> Step[Any]:
        """Add a step, and return it. Raises OptionInvalid, BodyTooLarge."""
        name = added.plan.name
        if self.prefix.count("/") >= MAX_DEPTH:
            raise OptionInvalid(
                f"step {name!r} would be nested in {MAX_DEPTH + 1} workflows; the maximum is {MAX_DEPTH}. Add it to an"
                " outer workflow, or enqueue a new one."
            )
        if len(self.steps) >= MAX_STEPS:
            raise OptionInvalid(
                f"one run cannot add more than {MAX_STEPS:,} steps. Use flow.map for many jobs of one kind, or let a"
                " step add steps."
            )
        self.take(0 if added.job is None else len(added.job.body) + len(added.job.headers), name)
        self.steps[name], self._added[name] = Step(self, added.plan), added
        return self.steps[name]

    def take(self, size: int, name: str) -> None:
        """Add to the total size of arguments, in bytes. Raises BodyTooLarge."""
        self._size += size
        if self._size > MAX_ADDED:
            raise BodyTooLarge(
                f"with step {name!r}, the arguments of this run's steps exceed {MAX_ADDED:,} bytes. Store the data"
                " elsewhere and pass references, or let several steps each add a part."
            )

    def check_open(self) -> None:
        """Raise RuntimeError in another thread, or once the run has ended."""
        if self._closed or threading.get_ident() != self._thread:
            raise RuntimeError(
                "steps can only be added while the workflow's function runs, in its own thread. A workflow built"
                " outside a worker takes steps until it is enqueued. To enqueue it again, build it again."
            )

    def named(self, wanted: str | None, job: str) -> str:
        """Return the next step's name: the requested one, or one based on its job's name. Raises OptionInvalid."""
        if wanted is None:
            name = base = job.rpartition(".")[2].replace("/", "-").replace(":", "-")[:MAX_STEP_NAME] or "step"
            number = 1
            while name in self.steps:
                number += 1
                name = f"{base}-{number}"
            return name
        check_step_name(wanted)
        if wanted in self.steps:
            raise OptionInvalid(f"this run has already added a step {wanted!r}. Give each step its own id.")
        return wanted

    def graph(self, result: Value | None = None) -> Graph:
        """Return the added steps. No more can be added afterwards."""
        self._closed = True
        used = {use.step for added in self._added.values() if added.job is not None for use in added.job.uses}
        used |= {use.step for use in result.uses} if result is not None else set()
        steps = (
            AddedStep(added.plan, with_fields(added.job, output=True), added.members)
            if name in used and added.job is not None
            else added
            for name, added in self._added.items()
        )
        return Graph(tuple(steps), result, self.deadline)

    @contextmanager
    def closed_if_stored(self) -> Iterator[None]:
        """Close the workflow, but reopen it if storing fails so that it can be enqueued again."""
        try:
            yield
        except Exception:  # not if waiting is cancelled, since it may still be stored
            self._closed = False
            raise

    def packed(self, graph: Graph) -> bytes:
        """Return the added steps as bytes. Raises BodyTooLarge."""
        packed = pack(graph)
        if len(packed) > MAX_ADDED:
            self.take(len(packed), "the last step")
        return packed


class Workflow:
    """Adds steps. A workflow function gets one as its first argument; it can also be created directly."""

    def __init__(self) -> None:
        self._building = Building(new_id())
        self._after: tuple[Condition, ...] = ()

    @classmethod
    def of_run(cls, message: Message, definition: JobDefinition) -> "Workflow":
        flow = cls()
        workflow, path, _ = step_of(message.extra) or (message.id, "", 0)
        flow._building = Building(workflow, path)
        flow._building.headers |= trace_headers()
        flow._building.deadline = None if path else definition.deadline
        return flow

    @property
    def steps(self) -> list[Step[Any]]:
        """The steps added so far."""
        return list(self._building.steps.values())

    @overload
    def step(self, job: Enqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, job: type[AwaitsProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, job: type[HasProcess[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, job: str, /, *args: Any, **kwargs: Any) -> Step[Any]: ...
    def step(self, job: Any, /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Add one job. If its arguments contain outputs of other steps, it runs after those steps.

        Raises ArgumentsInvalid, EncodeError, BodyTooLarge, OptionInvalid.
        """
        found, given, may_fail = self._job(job)
        marks = Marks(self._building)
        args, kwargs = marks.put(args), marks.put(kwargs)
        return self._add(found, given, args, kwargs, marks, may_fail=min(may_fail, 1))

    def map(
        self, job: Enqueuer[Concatenate[T, P], R], items: Iterable[T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Step[list[R]]:
        """Add one step with a job for each item. `args` and `kwargs` are additional arguments of each job.

        `items` may be a generator, or the output of a step. The step's output is the list of the jobs' results, in the
        order of the items. Raises the same errors as `step`.
        """
        found, given, may_fail = self._job(job)
        if isinstance(items, str | bytes | Mapping):
            raise OptionInvalid(
                f"flow.map got {type(items).__name__} {items!r:.40} as its items, which would make a job of each"
                " letter or key. Pass a list."
            )
        marks = Marks(self._building)
        more, named = marks.put(args), marks.put(kwargs)
        if isinstance(items, OutputOf | Step):
            options = {name: value for name, value in given.items() if name != "id"}
            name = found if isinstance(found, str) else found.name
            outer = {name: value for name, value in given.items() if name in ("id", "queue", "tenant", "priority")}
            inner = (name, marks.put(items), list(more), named, {**options, "may_fail": may_fail})
            if "queue" not in outer and isinstance(found, JobDefinition):
                outer["queue"] = found.queue_in(_client().settings)
            return self._add(OWN_JOBS[MAP], outer, inner, {}, marks, job_name=name)
        return self._add_map(found, given, items, more, named, marks, may_fail)

    def after(self, *steps: Step[Any], when: Literal["done", "failed", "over"] = "done") -> "Workflow":
        """Return the workflow with a condition: steps added to the returned object run after these steps.

        With "done", they run once all of these are done. With "failed", they run once all have ended and at least one
        of them, or a step before it, failed or was cancelled. With "over", they run once all have ended. Raises
        OptionInvalid.
        """
        if when not in tuple(When):
            raise OptionInvalid(f"when={when!r} is invalid; it must be 'done', 'failed' or 'over'.")
        for step in steps:
            if not isinstance(step, Step) or not step.is_in(self._building):
                raise OptionInvalid(f"flow.after got {step!r:.80}, which is not a step of this workflow.")
        flow = Workflow.__new__(Workflow)
        flow._building = self._building
        condition = Condition(tuple(step.name for step in steps), When(when))
        flow._after = (*self._after, condition) if steps else self._after
        return flow

    def signal(self, name: str, timeout: Duration | None = None) -> Step[Any]:
        """Add a step without a job, which is done once this signal is sent. Its output is the signal's value.

        It fails if the signal isn't sent within `timeout` of the end of the steps before it.
        """
        seconds = None if timeout is None else SECONDS.read("timeout", timeout)
        self._building.check_open()
        name = self._building.named(name, name)
        return self._building.add(AddedStep(Plan(name=name, after=self._after, signal=True, timeout=seconds)))

    def enqueue(self) -> Job[None]:
        """Store the workflow, in full or not at all. Raises the same errors as a job's `enqueue`, and can then be
        repeated.
        """
        message = self._message()
        with self._building.closed_if_stored():
            return _client().enqueue_message(message)

    async def enqueue_async(self) -> Job[None]:
        """Like `enqueue`, for asyncio programs."""
        import asyncio

        message = self._message()
        with self._building.closed_if_stored():
            return await asyncio.to_thread(_client().enqueue_message, message)

    def add(self, graph: Graph) -> None:
        """Add steps that were prepared elsewhere."""
        for added in graph.steps:
            if added.job is not None:
                headers = dumps({**loads(added.job.headers), **self._building.headers})
                added = with_fields(added, job=with_fields(added.job, headers=headers))
            self._building.add(added)

    def returned(self, value: Any, serialize: Callable[[Any], StoredResult] | None) -> bytes:
        """Return the steps added by a run that returned `value`, as bytes. Without `serialize`, the value isn't kept.

        Raises OptionInvalid, EncodeError, BodyTooLarge.
        """
        marks, result = Marks(self._building), None
        if serialize is not None and value is not None:
            stored = serialize(marks.put(value))
            result = Value(stored.content_type, stored.body, marks.text, marks.uses)
        return self._building.packed(self._building.graph(result))

    def _job(self, job: Any) -> tuple[JobDefinition | str, dict[str, Any], int]:
        """Return the job, its options, and how many of its failures are tolerated. Raises TypeError, OptionInvalid."""
        self._building.check_open()
        if isinstance(job, str):
            return registry.find(job) or job, {}, 0
        definition = getattr(job, "definition", None)
        if not isinstance(definition, JobDefinition):
            raise TypeError(f"{job!r} is not a job. Decorate it with @palermo.job or @palermo.workflow.")
        given = dict(getattr(job, "given", None) or {})
        may_fail = given.pop("may_fail", 0)
        if definition.batch is not None:
            raise OptionInvalid(
                f"job {definition.name!r} takes batches, so it cannot be a step. Use a job without batch=."
            )
        for name in NOT_IN_STEPS:
            if name in given or getattr(definition, name) is not None:
                raise OptionInvalid(
                    f"job {definition.name!r} has {name}=, which steps do not support, because their ids are already"
                    " unique."
                )
        return definition, given, may_fail

    def _add(
        self,
        job: JobDefinition | str,
        given: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        marks: Marks,
        *,
        may_fail: int = 0,
        job_name: str = "",
    ) -> Step[Any]:
        name = self._building.named(given.get("id"), job_name or (job if isinstance(job, str) else job.name))
        message, times = self._prepared(job, given, args, kwargs, name)
        plan = Plan(name=name, after=self._conditions(marks), may_fail=may_fail)
        return self._building.add(AddedStep(plan, StepJob.of(message, mark=marks.text, uses=marks.uses, **times)))

    def _add_map(
        self,
        job: JobDefinition | str,
        given: Mapping[str, Any],
        items: Iterable[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        marks: Marks,
        may_fail: int,
    ) -> Step[Any]:
        """Add a map whose items are known."""
        building = self._building
        # A generator may itself add steps. They must get their names before this step.
        items = items if isinstance(items, Sized) else list(items)
        name = building.named(given.get("id"), job if isinstance(job, str) else job.name)
        first: StepJob | None = None
        headers: Mapping[str, Any] = {}
        members: list[Member] = []
        for number, item in enumerate(items):
            try:
                message, times = self._prepared(job, given, (marks.put(item), *args), kwargs, f"{name}:{number}")
            except Exception as error:
                error.add_note(f"It is item {number:,} of flow.map for {name!r}. No job of the map has started.")
                raise
            message = with_fields(message, preview=None)
            if first is None:
                first, headers = StepJob.of(with_fields(message, body=b""), **times), to_headers(message)
            own = {
                key: value for key, value in to_headers(message).items() if key != "id" and headers.get(key) != value
            }
            members.append(Member(message.body, dumps(own) if own else ""))
            building.take(len(message.body) + 20, name)
        plan = Plan(name=name, after=self._conditions(marks), may_fail=may_fail, members=len(members))
        template = None if first is None else with_fields(first, mark=marks.text, uses=marks.uses)
        return self._building.add(AddedStep(plan, template, tuple(members)))

    def _conditions(self, marks: Marks) -> tuple[Condition, ...]:
        """Return the steps that must come first: those given to `after`, and those whose outputs are used."""
        known = {name for each in self._after if each.when is When.DONE for name in each.steps}
        used = tuple(use.step for use in marks.uses if use.step not in known)
        return (*self._after, Condition(used)) if used else self._after

    def _prepared(
        self,
        job: JobDefinition | str,
        given: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        name: str,
    ) -> tuple[Message, dict[str, Any]]:
        """Return the job of a step, and the options whose durations start when it is released."""
        client, building = _client(), self._building
        call: JobCall = call_of(client.settings, job, args, kwargs, client.unique_job)
        chosen = {**call.declared, **given}
        message = build_message(
            client,
            call,
            chosen,
            id=step_id(building.id, building.prefix + name),
            queue=chosen.get("queue", call.queue),
            now=None,
            run_at=due_at(clock.now(), delay=None, run_at=given.get("run_at"), declared=None),
            extra=building.headers,
        )
        times = {"delay": chosen.get("delay"), "expires": chosen.get("expires")}
        return message, {key: value for key, value in times.items() if value}

    def _message(self) -> Message:
        """Return the job that runs a directly created workflow. Raises OptionInvalid if it has no steps."""
        self._building.check_open()
        if not self._building.steps:
            raise OptionInvalid("this workflow has no steps. Add some with flow.step or flow.map.")
        graph = self._building.graph()
        jobs = [added.job for added in graph.steps if added.job is not None]
        client, id = _client(), self._building.id
        queue = jobs[0].message("", {}, 0.0).queue if jobs else client.settings.default_queue
        now, packed = clock.now(), self._building.packed(graph)
        encoded = Encoded(content_type=OCTETS, content_encoding="", body=packed, arguments="")
        if client.settings.sign or any(job.content_type == SIGNED for job in jobs):
            encoded = client.serializers.encode(
                (packed,), {}, job=READY, id=id, serializer=client.settings.serializer, sign=True
            )
        return Message(
            id=id,
            queue=queue,
            job=READY,
            body=encoded.body,
            content_type=encoded.content_type,
            created_at=int(now),
            queued_at=now,
            extra={**parent_header(), **trace_headers()},
        )


class WorkflowJob(FunctionJob[P, C, R]):
    """A decorated workflow function. Calling it requires a workflow as the first argument."""

    def __call__(self, flow: Workflow, /, *args: P.args, **kwargs: P.kwargs) -> C:  # type: ignore[override]
        return self._function(flow, *args, **kwargs)  # type: ignore[arg-type]


class WorkflowDecorator(Protocol):
    @overload
    def __call__(
        self, target: Callable[Concatenate[Workflow, P], Coroutine[Any, Any, R]], /
    ) -> WorkflowJob[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, target: Callable[Concatenate[Workflow, P], R], /) -> WorkflowJob[P, R, R]: ...


@overload
def workflow(
    target: Callable[Concatenate[Workflow, P], Coroutine[Any, Any, R]], /
) -> WorkflowJob[P, Coroutine[Any, Any, R], R]: ...
@overload
def workflow(target: Callable[Concatenate[Workflow, P], R], /) -> WorkflowJob[P, R, R]: ...
@overload
def workflow(**options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
def workflow(target: Any = None, /, **options: Any) -> Any:
    """Declare a function as a workflow, which is a job that adds steps. Can be used with or without parentheses.

    The function's first parameter is a `palermo.Workflow`; `enqueue` takes the others. The options are those of a job,
    and `deadline`: the time after its first run within which the workflow must end. Otherwise it is cancelled and
    fails.

    Raises OptionInvalid, QueueNameInvalid, JobNameTaken.
    """
    given = read_options(options, WORKFLOW_OPTIONS, "@palermo.workflow")
    given.setdefault("keep_result", True)
    return _declared(target, given) if target is not None else lambda target: _declared(target, given)


def _declared(target: Any, given: dict[str, Any]) -> Any:
    if isinstance(target, type):
        raise OptionInvalid(f"class {target.__qualname__!r} cannot be a workflow. Use @palermo.workflow on a function.")
    return declare(target, {**given, "workflow": True}, WorkflowJob)


def _client() -> "Client":
    from palermo.client.client import default_client

    return default_client()


def _ready(flow: Workflow, graph: bytes) -> None:
    """Add the steps of a directly created workflow."""
    flow.add(unpack(graph, Graph))


def _map(flow: Workflow, job: str, items: list[Any], args: list[Any], kwargs: dict[str, Any], options: Any) -> Any:
    """Add the members of a map once its items are known."""
    may_fail = options.pop("may_fail")
    given = read_options({**options, "id": "each"}, ENQUEUE_OPTIONS, "flow.map")
    if not isinstance(items, list | tuple):
        raise OptionInvalid(
            f"flow.map got {type(items).__name__} as its items from the previous step, which must return a list."
        )
    marks = Marks(flow._building)
    return flow._add_map(registry.find(job) or job, given, items, args, kwargs, marks, may_fail).output


#: Palermo's own jobs, by name.
OWN_JOBS: Mapping[str, JobDefinition] = {
    READY: define(_ready, name=READY, workflow=True),
    MAP: define(_map, name=MAP, workflow=True),
}


def serialized(serializer: Serializer) -> Callable[[Any], StoredResult]:
    """Return a function that writes values with this serializer."""
    return lambda value: StoredResult(serializer.media_type, serializer.dumps(value))
