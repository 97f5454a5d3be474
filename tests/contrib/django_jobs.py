"""Jobs and tasks of a Django project, besides those of the example: a worker imports this module by its name."""

import os
from pathlib import Path
from typing import Any

from django.db import connection, connections
from orders.models import Order  # type: ignore[import-not-found]

import palermo
from palermo.contrib.django import backend

try:
    from django.tasks import TaskResultStatus, task, task_backends
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:
    from django_tasks import TaskResultStatus, task, task_backends
    from django_tasks.exceptions import TaskResultDoesNotExist

__all__ = ["TaskResultDoesNotExist", "TaskResultStatus", "backend", "task_backends"]

# As modules do it that should not: a worker must not let its slots inherit this connection.
Order.objects.exists()


@palermo.job(name="look")
def look(notes: str) -> None:
    """Note the open connections of this process before and after a query, and the queries that Django remembers."""
    before, queries = _open(), len(connection.queries)
    Order.objects.count()
    _note(notes, before, _open(), queries)


@palermo.job(name="look_async")
async def look_async(notes: str) -> None:
    """The same in a coroutine."""
    before = _open()
    await Order.objects.acount()
    _note(notes, before, _open(), 0)


def _open() -> int:
    """How often this process has the database open."""
    database = str(connections["default"].settings_dict["NAME"])
    return sum(_target(one) == database for one in Path("/proc/self/fd").iterdir())


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _note(path: str, *values: int) -> None:
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {' '.join(map(str, values))}\n")


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="mail", priority=50)
def greet(name: str) -> str:
    return f"hello {name}"


@task(takes_context=True)
def attempt(context: Any, factor: int) -> list[Any]:
    return [context.attempt * factor, context.task_result.id]


@task
async def wait_for(number: int) -> int:
    return number


@task
def break_down() -> None:
    raise ValueError("no")
