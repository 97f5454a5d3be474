"""Decides the result of a failed run, and calls failure hooks and failure backends.

It runs in the slot, because exceptions, hooks and backoff functions are user code. If one of these raises, the others
still apply.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.core import arguments
from palermo.core.backoff import quartic
from palermo.core.failure import Failure, class_name, from_exception
from palermo.core.lifecycle import Dropped, Raised, Result, Retrying
from palermo.core.message import Message
from palermo.core.own_headers import own_headers
from palermo.core.retry_policy import Decision, Drop, GiveUp, Retry, RunAgain, decide, is_failure
from palermo.jobs import hooks
from palermo.jobs.definition import JobDefinition

log = logging.getLogger("palermo.worker")

#: Maximum number of characters of a reason.
MAX_REASON = 500


class JobRun(Struct, frozen=True):
    """A run whose job and arguments were found."""

    message: Message
    definition: JobDefinition
    args: Sequence[Any]
    kwargs: dict[str, Any]
    #: The object whose `process` ran, if any.
    instance: object | None = None
    #: Whether to call the job's hooks.
    hooked: bool = True
    #: Coroutines of hooks that the caller must await in order. They never raise.
    later: list[Coroutine[Any, Any, None]] = []


class RunFailures:
    """Decides the results of a slot's failed runs, and calls the failure hooks."""

    def __init__(self, worker: str, *, now: Callable[[], float], chance: Callable[[], float]) -> None:
        #: The tag of the slot.
        self._worker = worker
        self._now = now
        self._chance = chance

    def result(self, run: JobRun, error: BaseException, failure: Failure, *, final: bool = False) -> Result:
        """Return the result of a run that raised this error; `failure` is its stored form.

        With `final`, the job isn't retried.
        """
        decision = GiveUp() if final else self._decide(run, error)
        if is_failure(error):
            failure = _blamed(error, failure)
            self.call_hooks("on_failure", run, error)
        match decision:
            case RunAgain(delay):
                return Retrying(failure if is_failure(error) else None, delay)
            case Drop(reason):
                because = f"{failure.exception_class}: {failure.message}" if is_failure(error) else reason
                return Dropped(because[:MAX_REASON])
        if decision.exhausted:
            self.call_hooks("on_exhausted", run, error)
        return self.failed(run.message, error, failure, run.args, run.kwargs)

    def _decide(self, run: JobRun, error: BaseException) -> Decision:
        policy, message = run.definition.policy, run.message
        now, chance = self._now(), self._chance()
        try:
            return decide(policy, error, message, now=now, chance=chance)
        except BaseException:  # from the user's function, or because of its value
            log.exception("backoff function failed, using the default delay id=%s job=%s", message.id, message.job)
            return decide(replace(policy, backoff=quartic), error, message, now=now, chance=chance)

    def call_hooks(self, kind: str, run: JobRun, outcome: object) -> None:
        """Call the hooks of this kind with the error or the return value. Exceptions in hooks are only logged."""
        if not run.hooked:
            return
        try:
            found = hooks.hooks_for(kind, run.definition, run.instance)
        except BaseException:  # the class can't be instantiated, which is already the job's error
            return
        for hook in found:
            try:
                answer = hook(outcome, *run.args, **run.kwargs)
            except BaseException:
                _log_failed_hook(kind, hook, run)
            else:
                if inspect.iscoroutine(answer):
                    run.later.append(_finish(kind, hook, run, answer))

    def failed(
        self,
        message: Message,
        error: BaseException,
        failure: Failure,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = {},
    ) -> Result:
        """Return the result of a job that isn't retried, and report it to the failure backends.

        Errors in them don't affect the job. A message without a callable job has no arguments here.
        """
        backends = hooks.failure_backends()
        if not backends:
            return Raised(failure)
        report = hooks.FailureReport(
            id=message.id,
            job=message.job,
            queue=message.queue,
            preview=message.preview if message.preview is not None else arguments.preview(args, kwargs),
            failure=failure,
            worker=self._worker,
            attempt=message.attempt,
            headers=own_headers(message.extra),
            error=_cause(error),
        )
        for backend in backends:
            try:
                backend(report)
            except BaseException:
                log.exception("failure backend failed backend=%s id=%s", name_of(backend), message.id)
        return Raised(failure)


async def _finish(kind: str, hook: Callable[..., Any], run: JobRun, answer: Coroutine[Any, Any, Any]) -> None:
    try:
        await answer
    except BaseException:
        _log_failed_hook(kind, hook, run)


def _log_failed_hook(kind: str, hook: Callable[..., Any], run: JobRun) -> None:
    log.exception(f"{kind} hook failed hook=%s job=%s", name_of(hook), run.definition.name)


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _blamed(error: BaseException, failure: Failure) -> Failure:
    """Return the failure to store. For `raise palermo.Retry(…) from error` that is the cause with the whole
    traceback.
    """
    cause = _cause(error)
    if cause is error:
        return failure
    text = failure.message or from_exception(cause, failed_at=failure.failed_at).message
    return replace(failure, exception_class=class_name(type(cause)), message=text)


def _cause(error: BaseException) -> BaseException:
    """Return the error to store, which is the cause in `raise palermo.Retry(…) from error`."""
    cause = error.__cause__ if isinstance(error, Retry) else None
    return error if cause is None else cause
