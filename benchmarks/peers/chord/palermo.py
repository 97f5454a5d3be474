"""The chord as a workflow of Palermo. Its URL and exchange are in PALERMO_URL and PALERMO_EXCHANGE."""

import palermo

QUEUE = "chord"


@palermo.job(queue=QUEUE)
def one(number: int) -> int:
    return number


@palermo.job(queue=QUEUE)
def add(numbers: list[int]) -> int:
    return sum(numbers)


@palermo.workflow(queue=QUEUE)
def chord(flow: palermo.Workflow, count: int) -> int:
    return flow.step(add, flow.map(one, range(count)).output).output


def run(count: int, within: float) -> int:
    return chord.enqueue(count).result(timeout=within)
