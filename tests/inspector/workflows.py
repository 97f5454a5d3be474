"""A workflow of a shop, as its broker has it after some ends of its steps."""

from typing import Any

from palermo.contract.broker import Broker
from palermo.core.lifecycle import Fail, fail
from palermo.core.message import PARENT
from palermo.core.queue_selection import QueueSelection
from palermo.core.workflow import AddedStep, Graph, Member, StepJob, step_headers, step_id
from palermo.core.workflow_rules import Condition, How, Plan, When
from tests.inspector.jobs import TAG, _report, failure, message


def step(name: str, *after: str, when: When = When.DONE, queue: str = "steps", **plan: Any) -> AddedStep:
    """A step that comes after these."""
    conditions = (Condition(after, when),) if after else ()
    job = StepJob.of(message(name, queue=queue, job=f"shop.{name}", extra={PARENT: "w1"}))
    members = tuple(Member(b"[]") for _ in range(plan.get("members") or 0))
    added = Plan(name=name, after=conditions, **plan)
    return AddedStep(added, None if added.signal else job, members)


async def add_steps(broker: Broker, *steps: AddedStep, id: str = "w1") -> None:
    """A workflow with these steps."""
    root = message(id, queue="steps", job="shop.order")
    await broker.workflows.end(root, How.DONE, [], [], graph=Graph(steps))  # type: ignore[attr-defined]


async def end_step(
    broker: Broker, path: str, how: How = How.DONE, *, id: str = "w1", adds: tuple[AddedStep, ...] = ()
) -> None:
    """End a step of it, whose run added steps; its job stays where it is."""
    job = message(step_id(id, path), queue="steps", extra=step_headers(id, path, 0, output=False))
    await broker.workflows.end(job, how, [], [], graph=Graph(adds) if adds else None)  # type: ignore[attr-defined]


async def fail_next(broker: Broker, queue: str = "steps") -> None:
    """Let the next job of this queue fail, as a worker does it."""
    consumer = await broker.consume(QueueSelection.parse(queue), slots=1, tag=TAG, report=_report)
    delivery = await consumer.receive(5)
    await consumer.settle(delivery, Fail(fail(delivery.message, failure(), worker=f"{TAG}/worker-1")))
    await consumer.close()


async def add_order(broker: Broker) -> None:
    """A workflow that waits for a signal, and whose first step has failed, so that another one cleans up; and a map."""
    await add_steps(
        broker,
        step("pack"),
        step("approved", signal=True),
        step("unpack", "pack", when=When.FAILED),
        step("label", members=10, queue="labels"),
        step("ship", "approved", "label"),
    )
    await fail_next(broker)
    await fail_next(broker, "labels")
    for number in (1, 2, 3):
        await end_step(broker, f"label:{number}")
