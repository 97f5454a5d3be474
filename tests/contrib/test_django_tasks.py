"""Django's own tasks interface on Palermo: `@task` functions are jobs, and their results are found."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from palermo.client.client import Client
from palermo.core.lifecycle import Succeeded
from palermo.inspector.inspector import Inspector
from palermo.worker.child.executor import Executor
from tests.contrib import django_site


@pytest.fixture(autouse=True)
def tasks(_own_world: None) -> Any:
    """The module with the tasks."""
    return django_site.start().tasks


@pytest.fixture
def run(client: Client, executor: Executor) -> Callable[[], Any]:
    """Runs the first job that waits, as a slot does; its result."""

    def run() -> Any:
        [queue] = [row["name"] for row in Inspector(client).queues.list() if row["pending"]]
        [stored] = client.run(lambda broker: broker.browse(queue)).messages
        return executor.run(stored)

    return run


def test_a_task_is_a_job_with_its_name_queue_priority_and_time(tasks: Any, client: Client) -> None:
    result = tasks.add.enqueue(1, b=2)
    tasks.greet.enqueue("Ann")
    tasks.add.using(queue_name="mail", priority=-5).enqueue(1)
    later = tasks.add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)

    assert (result.status, result.args, result.kwargs) == (tasks.TaskResultStatus.READY, [1], {"b": 2})
    assert result.enqueued_at is not None
    [row] = Inspector(client).jobs.list("jobs").rows
    assert (row["id"], row["job"]) == (result.id, "tests.contrib.django_jobs.add")
    assert [row["priority"] for row in Inspector(client).jobs.list("mail").rows] == [5, 0]
    assert client.job_by_id(later.id).status() == "scheduled"
    assert tasks.add.get_result(later.id).status == tasks.TaskResultStatus.READY


@pytest.mark.parametrize(("chosen", "argument"), [("wait_for", 3), ("greet", "Ann"), ("attempt", 10)])
def test_a_worker_runs_the_function(tasks: Any, chosen: str, argument: Any, run: Callable[[], Any]) -> None:
    enqueued = getattr(tasks, chosen).enqueue(argument)

    result = run()

    assert isinstance(result, Succeeded)
    assert str(argument) in str(result.value)
    assert chosen != "attempt" or enqueued.id in str(result.value), "a task with context gets it, and nobody passes it"


def test_signals_are_sent_around_a_run(tasks: Any, run: Callable[[], Any]) -> None:
    heard: list[Any] = []

    def hear(sender: Any, task_result: Any, **_: Any) -> None:
        heard.append((task_result.task.name, str(task_result.status)))

    signals = (tasks.backend.task_enqueued, tasks.backend.task_started, tasks.backend.task_finished)
    for signal in signals:
        signal.connect(hear)
    try:
        tasks.break_down.enqueue()
        run()
    finally:
        for signal in signals:
            signal.disconnect(hear)

    assert heard == [("break_down", "READY"), ("break_down", "RUNNING"), ("break_down", "FAILED")]


def test_an_unknown_result_does_not_exist_and_wrong_options_are_told(tasks: Any, client: Client) -> None:
    with pytest.raises(tasks.TaskResultDoesNotExist):
        tasks.add.get_result("nobody")

    wrong = tasks.backend.PalermoBackend("other", {"OPTIONS": {"retires": 3}})

    assert list(tasks.task_backends["default"].check()) == []
    assert ["retires" in each.msg for each in wrong.check()] == [True]
