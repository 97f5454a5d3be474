"""Workflows whose steps write down when they begin and end, for a storm that kills workers and brokers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import palermo


@contextmanager
def noted() -> Iterator[None]:
    """Write a line in one system call as the step begins, and one as it ends, so that lines do not mix."""
    job = palermo.current_job()
    assert job is not None
    file = os.open(Path(os.environ["PALERMO_TEST_TRACE"]).with_name("steps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, f"begins {job.id}\n".encode())
        yield
        os.write(file, f"ends {job.id}\n".encode())
    finally:
        os.close(file)


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
