"""What follows a run that did not end well: the decision what becomes of the job, and whoever is told.

In the slot, since exceptions, hooks and backoff functions are the user's. Nothing that they
raise changes more than what they were asked for.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from palermo import hooks
from palermo.core import preview
from palermo.core.decision import Again, Decision, Drop, Retry, decide, is_failure
from palermo.core.failure import Failure, class_name, from_exception
from palermo.core.lifecycle import Dropped, Raised, Result, Retrying
from palermo.core.message import Message
from palermo.core.retry import quartic
from palermo.core.values import dataclass
from palermo.registry import JobDefinition

log = logging.getLogger("palermo.worker")

#: Characters of a reason that are kept.
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job that could be called."""

    message: Message
    definition: JobDefinition
    args: Sequence[Any]
    kwargs: dict[str, Any]
    #: The object whose `process` ran, if there is one.
    instance: object | None = None
    #: Whether the job's hooks can be called.
    hooked: bool = True


class Aftermath:
    """Decides, and tells."""

    def __init__(self, worker: str, *, now: Callable[[], float], chance: Callable[[], float]) -> None:
        #: The tag of the slot.
        self._worker = worker
        self._now = now
        self._chance = chance

    def of(self, run: Run, error: BaseException, failure: Failure) -> Result:
        """What becomes of a job whose run ended in this error; `failure` is what is kept of it."""
        decision = self._decide(run, error)
        if is_failure(error):
            failure = _blamed(error, failure)
            self._call("on_failure", run, error)
        match decision:
            case Again(delay):
                return Retrying(failure if is_failure(error) else None, delay)
            case Drop(reason):
                because = f"{failure.exception_class}: {failure.message}" if is_failure(error) else reason
                return Dropped(because[:_MAX_REASON])
        if decision.exhausted:
            self._call("on_exhausted", run, error)
        return self._report(run.message, failure, run.args, run.kwargs)

    def unrunnable(self, message: Message, failure: Failure) -> Result:
        """The same for a message that no job could be called with: another try would end the same way."""
        return self._report(message, failure, [], {})

    def _decide(self, run: Run, error: BaseException) -> Decision:
        policy, message = run.definition.policy, run.message
        now, chance = self._now(), self._chance()
        try:
            return decide(policy, error, message, now=now, chance=chance)
        except BaseException:  # a function of the user's, or what it gave
            log.exception("backoff failed, waiting as without it id=%s job=%s", message.id, message.job)
            return decide(replace(policy, backoff=quartic), error, message, now=now, chance=chance)

    def _call(self, kind: str, run: Run, error: BaseException) -> None:
        """Call hooks that get the error. What they raise is logged: the job's own error is the one to keep."""
        if not run.hooked:
            return
        try:
            found = hooks.bound(kind, run.definition, run.instance)
        except BaseException:  # a class that cannot be made has no hooks to call, and that is what failed
            return
        for hook in found:
            try:
                hook(error, *run.args, **run.kwargs)
            except BaseException:
                log.exception(f"{kind} hook failed hook=%s job=%s", name_of(hook), run.definition.name)

    def _report(self, message: Message, failure: Failure, args: Sequence[Any], kwargs: dict[str, Any]) -> Result:
        """It has failed: tell the failure back ends, none of which may lose the job."""
        backends = hooks.failure_backends()
        if not backends:
            return Raised(failure)
        report = hooks.FailureReport(
            id=message.id,
            job=message.job,
            queue=message.queue,
            preview=message.preview if message.preview is not None else preview.preview(args, kwargs),
            failure=failure,
            worker=self._worker,
        )
        for backend in backends:
            try:
                backend(report)
            except BaseException:
                log.exception("failure back end failed backend=%s id=%s", name_of(backend), message.id)
        return Raised(failure)


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called in the log."""
    return getattr(function, "__qualname__", None) or repr(function)


def _blamed(error: BaseException, failure: Failure) -> Failure:
    """The failure of `raise palermo.Retry(…) from error` is that error's, with the whole traceback."""
    cause = error.__cause__ if isinstance(error, Retry) else None
    if cause is None:
        return failure
    text = failure.message or from_exception(cause, failed_at=failure.failed_at).message
    return replace(failure, exception_class=class_name(type(cause)), message=text)
