"""Runs one message and returns a Result: finds the job, decodes its arguments, and calls the hooks and the job.

User code and deserialized data may raise anything. The executor itself never raises, and uses no processes or pipes, so
it works the same in a slot and in a test.
"""

import contextlib
import contextvars
import inspect
import itertools
import logging
import random
from asyncio import base_events
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cache, partial
from typing import Any, cast

from msgspec.structs import replace

from palermo import errors, tracing
from palermo.client import decorator
from palermo.client.workflow import OWN_JOBS, Workflow, serialized
from palermo.contract import clock
from palermo.contract.serialization import SIGNED, Accept, Serializer, Serializers, media_type
from palermo.core import arguments
from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import (
    CANCELLED,
    INTERRUPTED,
    MAX_RESULT,
    SUCCEEDED,
    BatchResult,
    Result,
    RunResult,
    StoredResult,
    Succeeded,
    why_not_stored,
)
from palermo.core.message import Message
from palermo.core.topics import OCTETS
from palermo.core.unique_keys import lock_of
from palermo.core.workflow import OUTPUT, step_of
from palermo.errors import (
    ArgumentsInvalid,
    DecodeError,
    HeaderInvalid,
    JobCrashed,
    JobError,
    JobExpired,
    JobUnnamed,
    ResultRefused,
)
from palermo.jobs import current, hooks
from palermo.jobs import definition as job_definition
from palermo.jobs.batch import Batch, OnMark, ignore_mark, watched
from palermo.jobs.current import CurrentJob, ProgressReports
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import Registry
from palermo.jobs.modules import JobModules
from palermo.jobs.saved import SavedState
from palermo.worker.child import interrupts as breaks
from palermo.worker.child import job_loop
from palermo.worker.child.interrupts import Interruptible, Interrupts
from palermo.worker.child.run_failures import MAX_REASON, JobRun, RunFailures, name_of

log = logging.getLogger("palermo.worker")

#: The serializer of results if the job's own is unsafe to read, because a client must not run code sent by a worker.
_SAFE = "json"


class ReturnValues:
    """Serializes a job's return value for the journal.

    If the value can't be kept, the job still succeeds, and a client that requests the result gets the reason.
    """

    def __init__(self, serializers: Serializers, *, serializer: str = _SAFE, limit: int) -> None:
        """`serializer` is used for jobs that don't name one; `limit` is in bytes."""
        self._serializers = serializers
        self._serializer = serializer
        self._limit = limit

    def succeeded(self, message: Message, definition: JobDefinition, returned: object) -> Succeeded:
        """Return the result of a job that returned this value."""
        wanted = definition.keep_result if message.keep_result is None else message.keep_result
        if not wanted:
            return SUCCEEDED
        try:
            serializer = self._chosen(definition)
            if definition.models is not None:
                returned = definition.models.written_result(returned)
            value = StoredResult(serializer.media_type, serializer.dumps(returned))
        except JobError:  # it timed out, was cancelled, or the worker is stopping
            raise
        except Exception as error:  # the value's own code may raise anything
            return Succeeded(refused=f"the result cannot be serialized: {_reason(error)}"[:MAX_REASON])
        refused = why_not_stored(value, self._limit)
        return Succeeded(refused=refused) if refused else Succeeded(value=value)

    def _chosen(self, definition: JobDefinition) -> Serializer:
        serializer = self._serializers.get(definition.serializer or self._serializer)
        return serializer if serializer.safe else self._serializers.get(_SAFE)

    def ended(self, message: Message, definition: JobDefinition, returned: object, flow: Workflow | None) -> Succeeded:
        """Return the result of a job, with its output for the workflow.

        Raises ResultRefused if the value can't be passed to later steps.
        """
        step = step_of(message.extra) if message.extra else None
        wanted = bool(message.extra.get(OUTPUT)) if step is not None else True
        if flow is not None and flow.steps:
            serialize = serialized(self._chosen(definition)) if wanted else None
            return Succeeded(adds=flow.returned(returned, serialize))
        result = self.succeeded(message, definition, returned)
        if step is None or not wanted:
            return result
        output = self.succeeded(replace(message, keep_result=True), definition, returned)
        if output.refused:
            raise ResultRefused(
                f"later steps of the workflow cannot use the output of job {message.id}: {output.refused}"
            )
        return replace(result, output=output.value)


def _reason(error: Exception) -> str:
    return arguments.about(str(error), "result") or type(error).__name__


class JobCall:
    """The messages of one call of a job, and their results. A batch has one result per message."""

    __slots__ = ("_batch", "_items", "_on_mark", "args", "batched", "definition", "kwargs", "later")

    def __init__(self, on_mark: OnMark) -> None:
        """`on_mark` is called with the position of each message whose batch item is marked."""
        self._on_mark = on_mark
        #: The job; None until the first message with which it can be called.
        self.definition: JobDefinition | None = None
        #: The arguments of the last message. A batch job gets `batch` instead.
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        #: Whether the job takes a list with an item per message.
        self.batched = False
        #: Coroutines of hooks, to await after the run.
        self.later: list[Coroutine[Any, Any, None]] = []
        self._batch: Batch[Any] | None = None
        #: The arguments for each message, or its result if the job can't be called with it.
        self._items: list[tuple[Message, list[Any], dict[str, Any]] | Result] = []

    def add(self, message: Message, definition: JobDefinition, args: list[Any], kwargs: dict[str, Any]) -> None:
        self._items.append((message, args, kwargs))
        self.definition, self.args, self.kwargs = definition, args, kwargs
        self.batched = definition.batch is not None

    def refuse(self, result: Result) -> None:
        """Set the result of the next message, because the job can't be called with it."""
        self._items.append(result)

    @property
    def messages(self) -> list[Message]:
        """The messages with which the job is called."""
        return [item[0] for item in self._items if isinstance(item, tuple)]

    def batch(self) -> Batch[Any]:
        """The list of all messages' arguments, which is the only argument of a batch job."""
        called = [(place, item) for place, item in enumerate(self._items) if isinstance(item, tuple)]
        items = ((args or list(kwargs.values()))[0] for _, (_, args, kwargs) in called)
        self._batch = watched(items, lambda position, done: self._on_mark(called[position][0], done))
        return self._batch

    def errors(self, error: BaseException | None) -> list[BaseException | None]:
        """Return the error of each message in a batch, or None, after the call returned or raised `error`."""
        assert self._batch is not None
        return self._batch.outcomes(error)

    def runs(self, instance: object | None = None, *, hooked: bool = True) -> list[JobRun]:
        """Return a run for each message, because failures are decided per message."""
        assert self.definition is not None
        return [
            JobRun(message, self.definition, [[*args, *kwargs.values()]], {}, instance, hooked, self.later)
            if self.batched
            else JobRun(message, self.definition, args, kwargs, instance, hooked, self.later)
            for message, args, kwargs in (item for item in self._items if isinstance(item, tuple))
        ]

    def ended(self, *results: Result) -> Result | BatchResult:
        """Return the result of the whole call. `results` contains one result per called message, or one for all of
        them.
        """
        each = itertools.cycle(results)
        found = [next(each) if isinstance(item, tuple) else item for item in self._items]
        return found[0] if len(found) == 1 and not self.batched else BatchResult(tuple(found))


SKIPPED = Succeeded(skipped=True)

Wait = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]

#: Called with an exception that ends a run, and the run's messages.
OnError = Callable[[BaseException, Sequence[Message]], None]


def ignore_error(error: BaseException, messages: Sequence[Message]) -> None:
    """Ignore the exception."""


#: For a job without around hooks; takes a third of the time of an empty ExitStack.
_NOTHING_AROUND: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

#: Files of Palermo and Python whose frames are removed from the start of tracebacks.
OWN_FILES = frozenset(
    file
    for file in (
        __file__,
        decorator.__file__,
        current.__file__,
        job_definition.__file__,
        hooks.__file__,
        breaks.__file__,
        contextlib.__file__,
        job_loop.__file__,
        base_events.__file__,
    )
    if file
)


class Executor:
    """Runs messages one at a time, using the jobs and hooks registered in this process."""

    def __init__(
        self,
        *,
        registry: Registry,
        serializers: Serializers,
        accept: Accept,
        worker: str,
        modules: JobModules | None = None,
        interrupts: Interruptible | None = None,
        return_values: ReturnValues | None = None,
        now: Callable[[], float] = clock.now,
        chance: Callable[[], float] = random.random,
        on_error: OnError = ignore_error,
        on_mark: OnMark = ignore_mark,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_error` is called with each exception before the result is decided, for a caller in the same process.

        `on_mark` is called immediately with the position of each message that a batch job marks. `stopping` returns
        whether the worker is stopping, which ends loops of `resume`.
        """
        self._registry = registry
        self._serializers = serializers
        self._accept = accept
        #: The slot's tag, for current_job and failure reports.
        self._worker = worker
        #: The modules to search for unregistered jobs.
        self._modules = modules
        self._interrupts: Interruptible = interrupts or Interrupts()
        self._return_values = return_values or ReturnValues(serializers, limit=MAX_RESULT)
        self._now = now
        self._on_error = on_error
        self._on_mark = on_mark
        self._stopping = stopping
        self._run_failures = RunFailures(worker, now=now, chance=chance)
        self._loop = job_loop.JobLoop()

    def run(self, message: Message, reports: ProgressReports | None = None) -> RunResult:
        """Run the job and return its result. `reports` receives its progress and log lines.

        The job runs in its own context, so that context variables don't leak into the next job.
        """
        return contextvars.copy_context().run(_without_waiting, self._run(message, reports, self._in_own_loop))

    async def run_async(self, message: Message, reports: ProgressReports | None = None) -> RunResult:
        """Run a coroutine job in the caller's loop and context, and return its result."""
        return await self._run(message, reports, self._interrupts.within)

    def close(self) -> None:
        """Close the event loop of async jobs."""
        self._loop.close()

    def crashed(self, message: Message, failure: Failure) -> RunResult:
        """Decide the result of a job whose process died, and call the hooks and failure backends."""
        return contextvars.copy_context().run(self._crashed, message, failure)

    async def _in_own_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a user's coroutine in the slot's event loop, and block until it ends."""
        return self._loop.run(self._interrupts.within(coroutine))

    async def _run(self, message: Message, reports: ProgressReports | None, wait: Wait) -> RunResult:
        with tracing.running(message, worker=self._worker) as span:
            result = await self._call_job(self._call_of(message), message, reports, wait)
            return result if span is None else span.ended(result)

    async def _call_job(
        self, call: JobCall, message: Message, reports: ProgressReports | None, wait: Wait
    ) -> RunResult:
        """Do the whole run. Nothing is awaited except through `wait`."""
        if call.definition is None:
            return call.ended()
        definition, args, kwargs = call.definition, call.args, call.kwargs
        if call.batched:
            args, kwargs = [call.batch()], {}
        current.set_current_job(partial(self._current, message, reports, call))
        begun = entered = returned = False
        flow = Workflow.of_run(message, definition) if definition.workflow else None
        value: Any = None
        instance: Any = None
        try:
            instance = definition.target() if definition.is_class else None
            begun = True
            try:
                self._interrupts.enter(message.timeout)
                for hook in hooks.hooks_for("before_process", definition, instance):
                    answer = hook(*args, **kwargs)
                    if inspect.iscoroutine(answer):
                        answer = await wait(answer)
                    if answer is False:
                        return call.ended(SKIPPED)
                around = hooks.hooks_for("around_process", definition, instance)
                with contextlib.ExitStack() if around else _NOTHING_AROUND as stack:
                    for hook in around:
                        stack.enter_context(_context(hook, args, kwargs))
                    entered = True
                    process = definition.target if instance is None else instance.process
                    value = process(*args, **kwargs) if flow is None else process(flow, *args, **kwargs)
                    if value is not None and inspect.iscoroutine(value):
                        value = await wait(value)
                for hook in hooks.hooks_for("after_process", definition, instance):
                    answer = hook(*args, **kwargs)
                    if inspect.iscoroutine(answer):
                        await wait(answer)
                if call.batched:
                    result = self._batch_ended(call, None, instance)
                else:
                    returned = True
                    result = self._return_values.ended(message, definition, value, flow)
            finally:
                self._interrupts.leave()
        except BaseException as error:  # a job that calls sys.exit() hasn't done its work either
            result = self._raised(call, error, instance, begun=begun, entered=entered, returned=returned)
        else:
            if self._interrupts.unfinished:  # and the job has caught the error
                return INTERRUPTED
            if not call.batched and hooks.hooks_for("on_success", definition, instance):
                for run in call.runs(instance):
                    self._run_failures.call_hooks("on_success", run, value)
        for coroutine in call.later:
            await wait(coroutine)
        return result

    def _raised(
        self,
        call: JobCall,
        error: BaseException,
        instance: object | None = None,
        *,
        begun: bool,
        entered: bool,
        returned: bool,
    ) -> RunResult:
        """Return the result of a run that raised this error.

        `begun` is whether the job's object had been created, `entered` whether all around hooks had been entered, and
        `returned` whether the job and its hooks had returned.
        """
        if begun:
            if self._interrupts.terminated:
                # The worker ended the job, whatever it raised, so it is requeued as if it had never started, without
                # hooks.
                return INTERRUPTED
            if self._interrupts.cancelled:
                return CANCELLED
            if isinstance(error, hooks.DontProcess) and not entered:
                return call.ended(SKIPPED)
        if call.batched:
            return self._batch_ended(call, error, instance, hooked=begun)
        failure = self._failure(error)
        runs = call.runs(instance, hooked=begun)
        self._on_error(error, [run.message for run in runs])
        # If the returned value can't be stored, a retry would only repeat the work. A JobError may be a timeout.
        return call.ended(
            *(
                self._run_failures.result(run, error, failure, final=returned and not isinstance(error, JobError))
                for run in runs
            )
        )

    def _batch_ended(
        self, call: JobCall, error: BaseException | None, instance: object | None, *, hooked: bool = True
    ) -> RunResult:
        """Return the result of a batch. Each message has its own error or that of the call, or is done."""
        failure = None if error is None else self._failure(error)
        results: list[Result] = []
        for run, own in zip(call.runs(instance, hooked=hooked), call.errors(error), strict=True):
            if own is None:
                results.append(SUCCEEDED)
                self._run_failures.call_hooks("on_success", run, None)
            else:
                why = failure if failure is not None and own is error else self._failure(own)
                results.append(self._run_failures.result(run, own, why))
        return call.ended(*results)

    def _call_of(self, message: Message, crash: Failure | None = None) -> JobCall:
        """Return the call for the message and its companions. Messages whose arguments don't fit the job are recorded
        as failed.

        `crash` is the failure of messages whose process died.
        """
        call = JobCall(self._on_mark)
        for each in (message, *message.companions) if message.companions else (message,):
            try:
                call.add(each, *self._prepare(each))
            except BaseException as error:
                if crash is not None:
                    # Hooks can't be called, because the process died before the arguments were decoded, or they decode
                    # differently now.
                    log.warning("on_failure hooks not called id=%s error=%r", each.id, str(error))
                    call.refuse(self._run_failures.failed(each, _fatal(crash), crash))
                    continue
                # It isn't retried, because it would fail again. Without the traceback, which contains only Palermo's
                # frames.
                failure = self._failure(error.with_traceback(None))
                self._on_error(error, (each,))
                call.refuse(self._run_failures.failed(each, error, failure))
        return call

    def _prepare(self, message: Message) -> tuple[JobDefinition, list[Any], dict[str, Any]]:
        """Return the job and its arguments. Raises if the message can't or must not be run."""
        if message.defect:
            raise HeaderInvalid(f"{message.defect}. Fix the program that published job {message.id}.")
        if message.expires_at is not None and self._now() >= message.expires_at:
            late = self._now() - message.expires_at
            raise JobExpired(f"job {message.id} expired {late:.1f} s ago, before a worker started it.")
        if not message.job:
            raise JobUnnamed(
                f'message {message.id} does not name a job, because it has no header "job-class". Fix the program that'
                f" published it, or declare a default job for the queue:"
                f" @palermo.job(queue={message.queue!r}, default=True)."
            )
        definition = self._registry.find(message.job) or OWN_JOBS.get(message.job) or self._loaded(message)
        if message.extra and message.topic and definition.subscribes is None:
            raise HeaderInvalid(
                f"message {message.id} is an event of topic {message.topic!r}, but job {message.job!r} has no"
                " subscription."
            )
        if definition.unique is not None or definition.dedupe is not None:
            _warn_if_plain(message, definition)
        value = self._serializers.decode(
            message,
            accept=self._accept,
            classes=definition.classes,
            raw=definition.raw if message.content_type == OCTETS else None,
        )
        args, kwargs = arguments.unpack(value, message.arguments, one=definition.one)
        try:
            definition.bind(args, kwargs)
        except ArgumentsInvalid as error:
            if value is not message.body:
                raise
            raise DecodeError(
                f"message {message.id} has no content type and its body is not JSON, so it was passed as bytes: {error}"
            ) from None
        if definition.models is not None:
            args, kwargs = definition.models.validated(args, kwargs, decoded=True)
        return definition, args, kwargs

    def _loaded(self, message: Message) -> JobDefinition:
        """Import the job's module, if the message is allowed to cause that. Raises JobNotFound."""
        if self._modules is not None:
            signed = media_type(message.content_type) == SIGNED
            if signed:
                self._serializers.decode_for_display(message, verify=True)
            if signed or not self._accept.signed_only:
                self._modules.load(message.job)
        return self._registry.get(message.job)

    def _current(self, message: Message, reports: ProgressReports | None, call: JobCall) -> CurrentJob:
        definition, batch = call.definition, call.messages if call.batched else []
        assert definition is not None
        message = batch[0] if batch else message
        return CurrentJob(
            id=message.id,
            queue=message.queue,
            job=message.job,
            attempt=message.attempt,
            worker=self._worker,
            created_at=message.created_at,
            topic=message.topic,
            tenant=message.tenant,
            parent=message.parent,
            headers=message.extra,
            batch=tuple(each.id for each in batch),
            _reports=reports,
            _state=None if batch else cache(lambda: self._saved_state(message, reports, definition)),
        )

    def _saved_state(self, message: Message, reports: ProgressReports | None, definition: JobDefinition) -> SavedState:
        serializer = self._serializers.get(_SAFE)
        return SavedState(
            message.saved,
            job=message.id,
            write=serializer.dumps,
            read=partial(serializer.loads, classes={**self._serializers.classes, **definition.classes}),
            report=_ignore_saved if reports is None else reports.saved,
            end_if_stopping=self._end_if_stopping,
        )

    def _end_if_stopping(self) -> None:
        if self._stopping():
            raise self._interrupts.end_loop()

    def _failure(self, error: BaseException) -> Failure:
        return from_exception(error, failed_at=int(self._now()), skip=OWN_FILES)

    def _crashed(self, message: Message, failure: Failure) -> RunResult:
        with tracing.running(message, worker=self._worker, crashed=True) as span:
            call, results = self._call_of(message, failure), list[Result]()
            if call.definition is not None:
                current.set_current_job(partial(self._current, message, None, call))
                results = [self._run_failures.result(run, _fatal(failure), failure) for run in call.runs()]
                for coroutine in call.later:
                    self._loop.run(coroutine)
            result = call.ended(*results)
            return result if span is None else span.ended(result)


def _ignore_saved(text: str) -> None:
    """Discard saved state, because the job's process has died."""


def _without_waiting(work: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Return the value of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("RunResult", end.value)
    raise AssertionError("the run of a job waited outside of a loop")


def _fatal(failure: Failure) -> JobError:
    """Return the error for hooks of a job whose process ended: JobCrashed, JobTimeout or JobOutOfMemory."""
    kind: type[JobError] = getattr(errors, failure.exception_class.rpartition(".")[2], JobCrashed)
    return kind(failure.message)


def _warn_if_plain(message: Message, definition: JobDefinition) -> None:
    """Log a unique job whose publisher didn't know that it is unique."""
    # A recurring job with unique=seconds needs no key, because each tick is published once.
    if message.attempt == 1 and "recurring" not in message.extra and lock_of(message) is None:
        log.warning(
            "unique job was enqueued without a key by a program without its code, running it anyway id=%s job=%s",
            message.id,
            definition.name,
        )


def _context(
    hook: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> contextlib.AbstractContextManager[Any]:
    """Return the context manager of an around hook. The hook is a generator with one yield, or returns one."""
    made = hook(*args, **kwargs)
    if inspect.isgenerator(made):
        return contextlib.contextmanager(lambda: made)()
    if isinstance(made, contextlib.AbstractContextManager):
        return made
    raise TypeError(
        f"around_process hook {name_of(hook)} returned {type(made).__name__};"
        " it must be a generator with one yield, or return a context manager"
    )
