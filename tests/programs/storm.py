"""Jobs and workflows whose steps write down when they begin and end, for a storm that kills workers and brokers."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import palermo


def write(name: str, line: str) -> None:
    """Append a line to a file of the test in one system call, so that lines do not mix."""
    file = os.open(Path(os.environ["PALERMO_TEST_TRACE"]).with_name(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


@contextmanager
def noted() -> Iterator[None]:
    """Write a line as the step begins, and one as it ends."""
    job = palermo.current_job()
    assert job is not None
    write("steps", f"begins {job.id}")
    yield
    write("steps", f"ends {job.id}")


@palermo.job
def link(number: int, before: int) -> int:
    with noted():
        assert before == number
        return number + 1


@palermo.workflow
def chain(flow: palermo.Workflow) -> int:
    output = 0
    for place in range(5):
        output = flow.step(link.options(id=f"link-{place}"), place, output).output
    return output


@palermo.job
def member(number: int) -> int:
    with noted():
        return number


@palermo.job
def add(numbers: list[int]) -> int:
    with noted():
        return sum(numbers)


@palermo.workflow
def fan(flow: palermo.Workflow, members: int) -> int:
    return flow.step(add, flow.map(member, range(members)).output).output


@palermo.workflow
def inner(flow: palermo.Workflow) -> int:
    first = flow.step(link.options(id="a"), 0, 0)
    return flow.step(link.options(id="b"), 1, first.output).output


@palermo.workflow
def graph(flow: palermo.Workflow) -> int:
    left, right = (flow.step(inner.options(id=name)) for name in ("left", "right"))
    return flow.after(right).step(link.options(id="join"), 2, left.output).output


@palermo.job(retries=10_000, backoff=0)
def import_rows(number: int, count: int, seed: float) -> None:
    job = palermo.current_job()
    assert job
    chance = random.Random(seed + job.attempt)
    for row in palermo.resume(lambda last: range((last or 0) + 1, count + 1), key=int):
        if chance.random() < 0.005:
            raise ValueError(row)
        write("rows", f"{number}/{row}")
        time.sleep(0.01)
