"""Workflows whose steps write a line, for tests that kill the workers."""

import os
from pathlib import Path

import palermo


def write(file: str, line: str) -> None:
    """Add a line in one system call, so that lines of several processes do not mix."""
    fd = os.open(Path(os.environ["PALERMO_TEST_TRACE"]).with_name(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


@palermo.job
def link(chain: int, number: int, before: int) -> int:
    write("links", f"{chain}/{number}")
    assert before == number
    return number + 1


@palermo.workflow
def chain(flow: palermo.Workflow, number: int) -> int:
    output = 0
    for place in range(5):
        output = flow.step(link.options(id=f"link-{place}"), number, place, output).output
    return output


@palermo.job
def member(number: int) -> int:
    write("members", str(number))
    return number


@palermo.job
def add(numbers: list[int]) -> int:
    write("sums", str(sum(numbers)))
    return sum(numbers)


@palermo.workflow
def fan(flow: palermo.Workflow, members: int) -> int:
    return flow.step(add, flow.map(member, range(members)).output).output


@palermo.workflow
def inner(flow: palermo.Workflow, number: int) -> int:
    first = flow.step(link.options(id="a"), number, 0, 0)
    return flow.step(link.options(id="b"), number, 1, first.output).output


@palermo.workflow
def graph(flow: palermo.Workflow, number: int) -> int:
    left, right = (flow.step(inner.options(id=name), number) for name in ("left", "right"))
    return flow.after(right).step(link.options(id="join"), number, 2, left.output).output
