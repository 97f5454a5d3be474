"""A backend for Django's tasks: functions decorated with Django's `@task` run on Palermo's workers.

    TASKS = {"default": {"BACKEND": "palermo.contrib.django.backend.PalermoBackend"}}

Each task is a job with the task's dotted name, and is shown like any other job. Tasks are part of Django from 6.0 on,
and of the package django-tasks for older versions.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, iscoroutinefunction
from typing import Any

from django.core import checks

from palermo.client.client import default_client
from palermo.client.decorator import job
from palermo.client.prepare import new_id
from palermo.client.status import JobStatus, State
from palermo.errors import IdInvalid, NotFound, PalermoError, ResultError, UsageError
from palermo.jobs.current import current_job
from palermo.jobs.job_registry import registry
from palermo.jobs.origin import signature_of

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    if find_spec("django_tasks") is None:
        raise UsageError(
            "this version of Django does not include django.tasks. Install Django 6.0 or later, or the package"
            " django-tasks."
        ) from None
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

_STATUS: Mapping[State, Any] = {
    State.PENDING: TaskResultStatus.READY,
    State.SCHEDULED: TaskResultStatus.READY,
    State.RETRYING: TaskResultStatus.READY,
    State.WORKING: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.DISCARDED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}


#: Maximum seconds for the broker to return a finished task's result.
_RESULT_SECONDS = 30.0

#: The tasks by job name. Global, because Django creates a backend object per thread.
_tasks: dict[str, Any] = {}


class PalermoBackend(BaseTaskBackend):
    """Runs tasks as jobs. OPTIONS are options of `@palermo.job` for all tasks: `{"retries": 3, "timeout": 60}`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        # get_result needs a kept result to return the task's value.
        self._job_options = {"keep_result": True, **self.options}

    def validate_task(self, task: Any) -> None:
        """Check a task, and declare its job on first use. Raises InvalidTask, OptionInvalid."""
        super().validate_task(task)
        known = _tasks.get(task.module_path)
        if known is None or known.func is not task.func:
            _tasks[task.module_path] = task
            job(**{**self._job_options, "name": task.module_path, "queue": _queue(task)})(_job_function(self, task))

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task. Raises the same errors as `Client.enqueue`."""
        self.validate_task(task)
        result = _result(task, self.alias, new_id(), TaskResultStatus.READY, args, kwargs)
        default_client().enqueue(
            registry.get(task.module_path),
            result.args,
            result.kwargs,
            id=result.id,
            queue=_queue(task),
            run_at=task.run_after,
            priority=_priority(task),
        )
        object.__setattr__(result, "enqueued_at", datetime.now(UTC))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return a task's state and return value, without its arguments, which aren't available for a finished job.

        Raises TaskResultDoesNotExist, BrokerUnavailable.
        """
        try:
            found = default_client().job_by_id(str(result_id))
            status = found.status()
        except (IdInvalid, NotFound) as error:
            raise TaskResultDoesNotExist(result_id) from error
        task = _tasks.get(status.job)
        if status.state not in _STATUS or task is None:
            raise TaskResultDoesNotExist(result_id)
        result = _result(task, self.alias, found.id, _STATUS[status.state])
        _fill(result, status)
        if status.state is State.DONE and status.result_kept:
            try:
                object.__setattr__(result, "_return_value", found.result(timeout=_RESULT_SECONDS))
            except ResultError as error:
                raise TaskResultDoesNotExist(result_id) from error
        return result

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """System check of the backend's OPTIONS."""
        try:
            job(**{**self._job_options, "name": f"{_nothing.__module__}.check"})(_nothing)
        except PalermoError as error:
            return [checks.Error(f"TASKS[{self.alias!r}]['OPTIONS']: {error}", id="palermo.E002")]
        finally:
            registry.unregister(f"{_nothing.__module__}.check")
        return []


def _nothing() -> None:
    """A function for checking options."""


def _queue(task: Any) -> str | None:
    """Return the queue of a task; None for Django's default queue, which is mapped to Palermo's default."""
    return None if task.queue_name == DEFAULT_TASK_QUEUE_NAME else str(task.queue_name)


def _priority(task: Any) -> int | None:
    """Map a priority from -100..100 to 0..9. Negative values become 0, because messages without priority have 0."""
    return math.ceil(task.priority * 9 / 100) if task.priority > 0 else None


def _job_function(backend: PalermoBackend, task: Any) -> Any:
    """Return the function that workers call for a task, which also sends Django's signals."""
    if iscoroutinefunction(task.func):

        @wraps(task.func)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with _running(backend, task, args, kwargs) as result:
                return _succeeded(backend, result, await task.func(*_given(result), **kwargs))

        run: Any = run_async
    else:

        @wraps(task.func)
        def run_plain(*args: Any, **kwargs: Any) -> Any:
            with _running(backend, task, args, kwargs) as result:
                return _succeeded(backend, result, task.func(*_given(result), **kwargs))

        run = run_plain
    own = signature_of(task.func)
    parameters: list[Parameter] = list(own.parameters.values())
    run.__signature__ = own.replace(parameters=parameters[1:] if task.takes_context else parameters)
    return run


def _given(result: Any) -> list[Any]:
    """Return the positional arguments for a task's function."""
    return [TaskContext(task_result=result), *result.args] if result.task.takes_context else result.args


def _result(
    task: Any,
    backend: str,
    id: str,
    status: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    return TaskResult(
        task=task,
        id=id,
        status=status,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs or {}),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


@contextmanager
def _running(backend: PalermoBackend, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Enter a running task; the context's value is the task's result. An error is recorded there and raised."""
    current = current_job()
    result = _result(task, backend.alias, current.id if current else "", TaskResultStatus.RUNNING, args, kwargs)
    _set(result, started_at=datetime.now(UTC), last_attempted_at=datetime.now(UTC))
    if current is not None:
        result.worker_ids.extend([current.worker] * current.attempt)
        if current.created_at is not None:
            _set(result, enqueued_at=datetime.fromtimestamp(current.created_at, UTC))
    task_started.send(type(backend), task_result=result)
    try:
        yield result
    except BaseException as error:
        _failed(backend, result, error)
        raise


def _succeeded(backend: PalermoBackend, result: Any, value: Any) -> Any:
    _set(
        result,
        _return_value=normalize_json(value),
        status=TaskResultStatus.SUCCESSFUL,
        finished_at=datetime.now(UTC),
    )
    task_finished.send(type(backend), task_result=result)
    return result._return_value


def _failed(backend: PalermoBackend, result: Any, error: BaseException) -> None:
    if result.status != TaskResultStatus.RUNNING:
        return  # a receiver of the signal raised
    import traceback

    kind = type(error)
    text = "".join(traceback.format_exception(error))
    result.errors.append(TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text))
    _set(result, status=TaskResultStatus.FAILED, finished_at=datetime.now(UTC))
    task_finished.send(type(backend), task_result=result)


def _fill(result: Any, status: JobStatus) -> None:
    """Copy times and errors from a status to a task's result."""
    ended, began = status.ended_at, status.started_at
    if began is None and ended is not None and status.took is not None:
        began = ended - status.took
    for name, at in (("started_at", began), ("last_attempted_at", began), ("finished_at", ended)):
        if at is not None:
            _set(result, **{name: datetime.fromtimestamp(at, UTC)})
    if status.worker and status.state is not State.PENDING:
        result.worker_ids.extend([status.worker] * (status.attempt or 1))
    if status.error:
        path = status.error if "." in status.error else f"builtins.{status.error}"
        result.errors.append(TaskError(exception_class_path=path, traceback=f"{status.error}: {status.message}"))


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
