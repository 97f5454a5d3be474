"""A message in, a result out: finding the job, reading its arguments, hooks, the call, and what it raised.

This is the edge where anything may be raised: the user's code, and what serialized data
makes of itself. Nothing but a Result comes out. It knows no processes and no pipes; it
runs in a slot, and as well in a test.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import random
import time
from asyncio import base_events, runners
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, cast

from palermo import current, errors, hooks, jobs, tracing
from palermo import registry as registered
from palermo.core import arguments
from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import CANCELLED, INTERRUPTED, RunResult, Succeeded
from palermo.core.message import Message
from palermo.core.outcome import MAX_RESULT
from palermo.current import CurrentJob, Reports
from palermo.errors import HeaderInvalid, JobCrashed, JobError, JobExpired, JobUnnamed
from palermo.registry import JobDefinition, Registry
from palermo.serialization import Accept, Serializers
from palermo.worker import interrupts as breaks
from palermo.worker import shared_interrupts
from palermo.worker.aftermath import Aftermath, name_of
from palermo.worker.call import Call
from palermo.worker.interrupts import Interruptible, Interrupts
from palermo.worker.keeping import Keeping

log = logging.getLogger("palermo.worker")

SKIPPED = Succeeded(skipped=True)

#: Costs a third of an empty ExitStack.
_NOTHING_AROUND: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

#: Frames at the start of every traceback that are not the user's.
_OURS = frozenset(
    file
    for file in (
        __file__,
        jobs.__file__,
        current.__file__,
        registered.__file__,
        hooks.__file__,
        breaks.__file__,
        shared_interrupts.__file__,
        contextlib.__file__,
        runners.__file__,
        base_events.__file__,
    )
    if file
)


class Executor:
    """Runs messages one at a time, with the jobs and hooks that are registered in this process."""

    def __init__(
        self,
        *,
        registry: Registry,
        serializers: Serializers,
        accept: Accept,
        worker: str,
        interrupts: Interruptible | None = None,
        keeping: Keeping | None = None,
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._registry = registry
        self._serializers = serializers
        self._accept = accept
        #: The tag of the slot, for current_job and the failure's report.
        self._worker = worker
        self._interrupts: Interruptible = interrupts or Interrupts()
        self._keeping = keeping or Keeping(serializers, limit=MAX_RESULT)
        self._now = now
        self._aftermath = Aftermath(worker, now=now, chance=chance)

    def run(self, message: Message, reports: Reports | None = None) -> RunResult:
        """Run the job and say how it went; `reports` takes what it tells of itself meanwhile.

        In a context of its own, so that context variables that a job sets are gone for the next one.
        """
        return contextvars.copy_context().run(self._run, message, reports)

    async def run_async(self, message: Message, reports: Reports | None = None) -> RunResult:
        """The same for a coroutine job, in the loop and the context of the caller."""
        with tracing.running(message, worker=self._worker) as span:
            steps = self._steps(self._call_of(message), message, reports)
            try:
                coroutine = next(steps)
                while True:
                    try:
                        returned = await self._interrupts.within(coroutine)
                    except BaseException as error:
                        coroutine = steps.throw(error)
                    else:
                        coroutine = steps.send(returned)
            except StopIteration as end:
                return span.ended(cast("RunResult", end.value))

    def crashed(self, message: Message, failure: Failure) -> RunResult:
        """Say what becomes of a job whose process died under it, and tell hooks and failure back ends."""
        return contextvars.copy_context().run(self._crashed, message, failure)

    def _run(self, message: Message, reports: Reports | None) -> RunResult:
        with tracing.running(message, worker=self._worker) as span:
            call = self._call_of(message)
            if call.is_plain:
                return span.ended(self._plainly(call, message, reports))
            steps = self._steps(call, message, reports)
            try:
                coroutine = next(steps)
                while True:
                    try:
                        returned = asyncio.run(self._interrupts.within(coroutine))
                    except BaseException as error:
                        coroutine = steps.throw(error)
                    else:
                        coroutine = steps.send(returned)
            except StopIteration as end:
                return span.ended(cast("RunResult", end.value))

    def _plainly(self, call: Call, message: Message, reports: Reports | None) -> RunResult:
        """The same run as `_steps` makes, of what is plain when it begins: most jobs are, and pay for nothing else."""
        definition = call.definition
        assert definition is not None
        args, kwargs = call.args, call.kwargs
        self._enter(message, reports)
        interrupts = self._interrupts
        try:
            try:
                interrupts.enter(message.timeout)
                value = definition.target(*args, **kwargs)
                if value is not None and inspect.iscoroutine(value):
                    value = asyncio.run(interrupts.within(value))
                if not hooks.is_bare(definition):  # the job has registered one
                    hooks.notify("after_process", definition, args, kwargs)
                return self._keeping.succeeded(message, definition, value)
            finally:
                interrupts.leave()
        except BaseException as error:
            return self._raised(call, error, begun=True, entered=True)

    def _steps(
        self, call: Call, message: Message, reports: Reports | None
    ) -> Generator[Coroutine[Any, Any, Any], Any, RunResult]:
        """The whole run; what it yields is to be awaited, and what that gives sent in, or what it raises thrown in.

        One generator, and not several: a StopIteration that a job raises would leave a generator as RuntimeError.
        """
        if call.definition is None:
            return call.ended()
        definition, args, kwargs = call.definition, call.args, call.kwargs
        self._enter(message, reports, batched=call.batched)
        begun = entered = False
        value: Any = None
        instance: object | None = None
        try:
            instance = definition.instantiate()
            begun = True
            try:
                self._interrupts.enter(message.timeout)
                if not hooks.permitted("before_process", definition, args, kwargs, instance):
                    return call.ended(SKIPPED)
                around = hooks.bound("around_process", definition, instance)
                with contextlib.ExitStack() if around else _NOTHING_AROUND as stack:
                    for hook in around:
                        stack.enter_context(_context(hook, args, kwargs))
                    entered = True
                    value = definition.call(args, kwargs, instance)
                    if value is not None and inspect.iscoroutine(value):
                        value = yield value
                hooks.notify("after_process", definition, args, kwargs, instance)
                return call.ended(self._keeping.succeeded(message, definition, None if call.batched else value))
            finally:
                self._interrupts.leave()
        except BaseException as error:  # a job that calls sys.exit() has not done its work either
            return self._raised(call, error, instance, begun=begun, entered=entered)

    def _raised(
        self, call: Call, error: BaseException, instance: object | None = None, *, begun: bool, entered: bool
    ) -> RunResult:
        """How a run ends in which this was raised: before it had an object to run on, before its job was called, or
        since.
        """
        if begun:
            if self._interrupts.terminated:
                # Whatever it raised, it was made to: it goes back as if it had never begun, and nobody is told.
                return INTERRUPTED
            if self._interrupts.cancelled:
                return CANCELLED
            if isinstance(error, hooks.DontProcess) and not entered:
                return call.ended(SKIPPED)
        failure = self._failure(error)
        runs = call.runs(instance, hooked=begun)
        return call.ended(*(self._aftermath.of(run, error, failure) for run in runs))

    def _call_of(self, message: Message) -> Call:
        """What is to be called for the message and its companions; those for which nothing can be are ended by it."""
        call = Call()
        for each in (message, *message.companions) if message.companions else (message,):
            try:
                call.add(each, *self._prepare(each))
            except BaseException as error:
                # No frame of ours says more than the error's own text, and none of the user's is there.
                failure = self._failure(error.with_traceback(None))
                call.refuse(self._aftermath.unrunnable(each, failure))
        return call

    def _prepare(self, message: Message) -> tuple[JobDefinition, list[Any], dict[str, Any]]:
        """The job and the arguments it can be called with."""
        if message.defect:
            raise HeaderInvalid(f"{message.defect}. Mend the program that published job {message.id}.")
        if message.expires_at is not None and self._now() >= message.expires_at:
            late = self._now() - message.expires_at
            raise JobExpired(f"job {message.id} was not started in time: it expired {late:.1f} s ago. It was not run.")
        if not message.job:
            raise JobUnnamed(
                f"message {message.id} names no job: it has no header job-class. Mend the program that published it."
            )
        definition = self._registry.get(message.job)
        if message.extra and message.topic and definition.subscribes is None:
            raise HeaderInvalid(
                f"message {message.id} is an event of topic {message.topic!r}, and job {message.job!r} subscribes to"
                " none."
            )
        value = self._serializers.decode(message, accept=self._accept, classes=definition.classes)
        args, kwargs = arguments.unpack(value, message.arguments, one=definition.one)
        definition.bind(args, kwargs)
        return definition, args, kwargs

    def _enter(self, message: Message, reports: Reports | None = None, *, batched: bool = False) -> None:
        current.enter(partial(self._current, message, reports, batched=batched))

    def _current(self, message: Message, reports: Reports | None, *, batched: bool) -> CurrentJob:
        return CurrentJob(
            id=message.id,
            queue=message.queue,
            job=message.job,
            attempt=message.attempt,
            worker=self._worker,
            created_at=message.created_at,
            topic=message.topic,
            tenant=message.tenant,
            batch=tuple(each.id for each in (message, *message.companions)) if batched else (),
            _reports=reports,
        )

    def _failure(self, error: BaseException) -> Failure:
        return from_exception(error, failed_at=int(self._now()), skip=_OURS)

    def _crashed(self, message: Message, failure: Failure) -> RunResult:
        with tracing.running(message, worker=self._worker, crashed=True) as span:
            return span.ended(self._judge_crash(message, failure))

    def _judge_crash(self, message: Message, failure: Failure) -> RunResult:
        call = Call()
        for each in (message, *message.companions):
            try:
                call.add(each, *self._prepare(each))
            except BaseException as error:
                # It crashed before its arguments were read, or they read differently now: no hook can be called with
                # them.
                log.warning("on_failure hooks not called id=%s error=%r", each.id, str(error))
                call.refuse(self._aftermath.unrunnable(each, failure))
        if call.definition is None:
            return call.ended()
        self._enter(message, batched=call.batched)
        return call.ended(*(self._aftermath.of(run, _fatal(failure), failure) for run in call.runs()))


def _fatal(failure: Failure) -> JobError:
    """The error, for hooks, of a job whose process ended under it: JobCrashed, JobTimeout or JobOutOfMemory."""
    kind: type[JobError] = getattr(errors, failure.exception_class.rpartition(".")[2], JobCrashed)
    return kind(failure.message)


def _context(
    hook: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> contextlib.AbstractContextManager[Any]:
    """What an around hook makes: a generator with one yield, or a context manager."""
    made = hook(*args, **kwargs)
    if inspect.isgenerator(made):
        return contextlib.contextmanager(lambda: made)()
    if isinstance(made, contextlib.AbstractContextManager):
        return made
    raise TypeError(
        f"around_process hook {name_of(hook)} gave {type(made).__name__};"
        " it must be a generator with one yield, or give a context manager"
    )
