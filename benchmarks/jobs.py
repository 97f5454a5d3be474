"""The jobs that are measured: they do nothing, with about 1 kB of arguments. `mark` writes down when it started."""

import time
from pathlib import Path
from typing import Any, Final

import palermo

QUEUE: Final = "bench"

#: The queue of `mark`.
MARKED: Final = "bench-marked"

#: 1 kB as JSON: numbers, texts, a list of small objects.
ORDER: Final[dict[str, Any]] = {
    "id": 424242,
    "kind": "order.created",
    "paid": True,
    "total": 1234.56,
    "customer": {"id": 7, "name": "Grace Hopper", "email": "grace@example.org", "tags": ["a", "b", "c"]},
    "items": [
        {"sku": f"SKU-{n:05}", "quantity": n, "price": 9.99 + n, "title": "A thing with a name"} for n in range(8)
    ],
    "note": "x" * 240,
}


@palermo.job(queue=QUEUE)
def noop(order: dict[str, Any]) -> None:
    """Nothing."""


@palermo.job(queue=QUEUE)
async def awaited(order: dict[str, Any]) -> None:
    """Nothing, in a coroutine."""


@palermo.job(queue=MARKED)
def mark(path: str) -> None:
    """Write down when this line was reached, by the clock that all processes share."""
    Path(path).write_text(f"{time.monotonic()}\n")


@palermo.job(queue=QUEUE)
def nothing(number: int) -> None:
    """Nothing, with a number as its argument."""


@palermo.job(queue=QUEUE, keep_result=True)
def last() -> bool:
    """The end of a queue."""
    return True


@palermo.job(queue=QUEUE)
def stamp(path: str) -> None:
    """Add the time at which this line was reached."""
    with Path(path).open("a") as file:
        file.write(f"{time.monotonic()}\n")


@palermo.workflow(queue=QUEUE)
def fan_out(flow: palermo.Workflow, members: int, queue: str = QUEUE) -> None:
    """One map of jobs that do nothing."""
    flow.map(nothing.options(queue=queue), range(members))


@palermo.workflow(queue=QUEUE)
def chain(flow: palermo.Workflow, length: int, path: str | None = None) -> None:
    """Steps one after the other that do nothing, or add their times to a file."""
    for number in range(length):
        step = flow.step(nothing, number) if path is None else flow.step(stamp, path)
        flow = flow.after(step)
