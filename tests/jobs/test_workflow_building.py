"""Steps are checked in the line that adds them."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

import palermo
from palermo.client import client as clients
from palermo.client.client import Client
from palermo.client.workflow import OWN_JOBS
from palermo.contract.serialization import Accept, Serializers
from palermo.core.message import Message
from palermo.core.step_values import Output, Value
from palermo.core.workflow import step_headers
from palermo.errors import ArgumentsInvalid, BodyTooLarge, EncodeError, MediaTypeRefused, OptionInvalid, StoreInvalid
from palermo.jobs import registry
from palermo.settings.settings import Settings


@palermo.job
def charge(order: int) -> str:
    return ""


@palermo.job
def pack(order: int, how: object = None) -> str:
    return ""


pickled = pack.options(serializer="pickle")


@dataclass
class Box:
    content: object


@palermo.job(unique="until_done")
def only_one(order: int) -> None: ...


@palermo.job(batch=10)
def together(orders: list[int]) -> None: ...


@palermo.job
class NeverEnqueued:
    def before_enqueue(self) -> bool:
        return False

    def process(self) -> None: ...


@palermo.workflow
def checkout(flow: palermo.Workflow, order: int) -> None: ...


for _job in (charge, pack, only_one, together, NeverEnqueued, checkout):
    registry.unregister(_job.definition.name)


@pytest.fixture
def flow() -> palermo.Workflow:
    return palermo.Workflow()


def inside(depth: int) -> palermo.Workflow:
    """A workflow that is a step in so many workflows."""
    headers = step_headers("a", "/".join("s" * depth), 0, output=False)
    message = Message(id="a", queue="jobs", job="checkout", body=b"", content_type="", extra=headers)
    return palermo.Workflow.of_run(message, checkout.definition)


def numbers() -> Iterator[object]:
    yield from range(70)
    yield object()


@pytest.mark.parametrize(
    ("add", "error", "text"),
    [
        (lambda flow: flow.step(pack, 1, flow.step(charge, 1)), OptionInvalid, "Pass its output"),
        (lambda flow: flow.step(pack, 1, [flow.step(charge, 1)]), OptionInvalid, "Pass its output"),
        (lambda flow: flow.map(pack, flow.step(charge, 1)), OptionInvalid, "Pass its output"),
        (lambda flow: flow.step(pack, 1, palermo.Workflow().step(charge, 1).output), OptionInvalid, "another workflow"),
        (lambda flow: flow.after(palermo.Workflow().step(charge, 1)), OptionInvalid, "not a step of this workflow"),
        (lambda flow: [flow.step(charge.options(id="a"), 1) for _ in range(2)], OptionInvalid, "already added"),
        (lambda flow: flow.step(charge.options(id="a/b"), 1), OptionInvalid, "'a/b'"),
        (lambda flow: flow.step(charge.options(id="x" * 101), 1), OptionInvalid, "1 to 100 bytes"),
        (lambda flow: flow.signal(""), OptionInvalid, "1 to 100 bytes"),
        (lambda flow: flow.signal(5), OptionInvalid, "step or signal, 5, must be"),
        (lambda flow: palermo.job_by_id("x").signal("n" * 101), OptionInvalid, "1 to 100 bytes"),
        (lambda flow: flow.step(charge), ArgumentsInvalid, "missing a required argument"),
        (lambda flow: flow.step(charge, object()), EncodeError, r"args\[0\]"),
        (lambda flow: flow.step(charge, "x" * 16_800_000), BodyTooLarge, "16,777,216"),
        (lambda flow: [flow.step(charge, "x" * 5_300_000) for _ in range(2)], BodyTooLarge, "'charge-2'"),
        (lambda flow: flow.map(charge, ("x" * 1_000 for _ in range(10_400))), BodyTooLarge, "10,485,760"),
        (lambda flow: flow.map(charge, "abc"), OptionInvalid, "each letter"),
        (lambda flow: flow.map(charge, {"a": 1}), OptionInvalid, "dict"),
        (lambda flow: [flow.step(charge, 1) for _ in range(1_001)], OptionInvalid, "more than 1,000 steps"),
        (lambda flow: inside(31).step(charge, 1) and inside(32).step(charge, 1), OptionInvalid, "in 33 workflows"),
        (lambda flow: flow.step(numbers), TypeError, "Decorate it"),
        (lambda flow: flow.step(only_one, 1), OptionInvalid, "unique="),
        (lambda flow: flow.step(charge.options(debounce=3), 1), OptionInvalid, "debounce="),
        (lambda flow: flow.step(together, 1), OptionInvalid, "batches"),
        (lambda flow: flow.after(flow.step(charge, 1), when="any"), OptionInvalid, "'any'"),
        (lambda flow: flow.signal("approved", timeout=float("inf")), OptionInvalid, "timeout=inf"),
        (lambda flow: flow.signal("approved", timeout="5m"), OptionInvalid, "timeout='5m'"),
        (lambda flow: charge.options(may_fail=-1), OptionInvalid, "may_fail=-1"),
        (lambda flow: charge.options(may_fail=1_000_001), OptionInvalid, "from 0 to 1,000,000"),
        (lambda flow: charge.options(may_fail=True).enqueue(1), OptionInvalid, "may_fail"),
        (lambda flow: flow.enqueue(), OptionInvalid, "no steps"),
        (lambda flow: flow.step(pickled, 1, Box(flow.step(charge, 1).output)), EncodeError, "Pass the output"),
        (lambda flow: flow.step(pickled, 1, {flow.step(charge, 1).output}), EncodeError, "Pass the output"),
        (lambda flow: flow.step(charge, 1).output or 1, TypeError, "'charge' cannot be used here"),
        (lambda flow: f"{flow.step(charge, 1).output}", TypeError, "'charge' cannot be used here"),
        (lambda flow: flow.step(charge, 1).output == 1, TypeError, "'charge' cannot be used here"),
        (lambda flow: list(flow.step(charge, 1).output), TypeError, "'charge' cannot be used here"),
    ],
)
def test_a_step_that_cannot_be_is_refused(flow: palermo.Workflow, add, error: type[Exception], text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=text):
        add(flow)


def test_a_generator_that_fails_is_told_with_the_number_of_its_item(flow: palermo.Workflow) -> None:
    with pytest.raises(EncodeError) as raised:
        flow.map(charge, numbers())

    assert "item 70 " in str(raised.value.__notes__)
    assert flow.steps == []


def test_a_workflow_takes_steps_only_in_its_function(flow: palermo.Workflow) -> None:
    caught: list[Exception] = []

    def add() -> None:
        try:
            flow.step(charge, 1)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    thread.join()
    assert len(caught) == 1

    flow.step(charge, 1)
    flow._message()
    with pytest.raises(RuntimeError, match="build it again"):
        flow.step(charge, 1)


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_workflow_not_stored_can_be_enqueued_again(flow: palermo.Workflow, tmp_path: Path, *, in_loop: bool) -> None:
    def enqueue(url: str) -> str:
        with clients.lend(Client(Settings(url=url))):
            return (asyncio.run(flow.enqueue_async()) if in_loop else flow.enqueue()).id

    flow.step(charge, 1)
    with pytest.raises(StoreInvalid):
        enqueue(f"sqlite:///{tmp_path}/missing/jobs.db")

    assert enqueue(f"sqlite:///{tmp_path}/jobs.db") == flow._building.id
    with pytest.raises(RuntimeError, match="build it again"):
        enqueue(f"sqlite:///{tmp_path}/jobs.db")


def test_a_workflow_is_a_function_with_an_argument_for_its_steps() -> None:
    with pytest.raises(OptionInvalid, match="on a function"):
        palermo.workflow(type("Checkout", (), {"process": lambda self, flow: None}))  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="has no parameter for the flow"):

        @palermo.workflow  # type: ignore[arg-type]
        def without() -> None: ...


def test_an_output_makes_a_step_come_after_another_once(flow: palermo.Workflow) -> None:
    paid = flow.step(charge, 1)
    packed = flow.after(paid).step(pack, 1, {"of": [paid.output, (paid.output,)]})

    assert packed.after == [paid]
    assert repr(packed.output) == "<output of step 'pack'>"


def test_the_items_of_a_map_may_add_steps_before_it(flow: palermo.Workflow) -> None:
    boxes = flow.map(charge, (flow.step(charge, number).output for number in range(2)))

    assert [step.name for step in flow.steps] == ["charge", "charge-2", "charge-3"]
    assert boxes.after == flow.steps[:2]


def test_hooks_of_enqueuing_do_not_run_for_steps(flow: palermo.Workflow) -> None:
    assert flow.step(NeverEnqueued).name == "NeverEnqueued"


def test_a_worker_of_signed_jobs_accepts_no_outputs() -> None:
    taken = Value("application/json", b'["m-0"]', "m-", outputs=(Output(Value("application/json", b"17")),))

    serializers = Serializers.default()
    assert serializers.load(taken, accept=Accept.default()) == [17]
    with pytest.raises(MediaTypeRefused, match="the output of a step"):
        serializers.load(taken, accept=Accept.only("signed"), own=lambda value: ["m-0"])


@pytest.mark.parametrize("by_setting", [True, False])
def test_a_workflow_of_signed_jobs_is_signed(flow: palermo.Workflow, *, by_setting: bool) -> None:
    settings = Settings(url="sqlite:///:memory:", sign=by_setting, signing_keys=("0123456789abcdef",))
    with clients.lend(client := Client(settings)):
        flow.step(charge if by_setting else charge.options(sign=True), 17)
        message = flow._message()

    args = client.serializers.decode(message, accept=Accept.only("signed"))
    again = palermo.Workflow()
    OWN_JOBS[message.job].target(again, *cast("list[bytes]", args))
    assert [step.name for step in again.steps] == ["charge"]
