"""Pydantic models as arguments and results of jobs."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

import palermo
from palermo.errors import ArgumentsInvalid, ResultRefused
from palermo.jobs import registry
from palermo.testing import Palermo


class Line(BaseModel):
    model_config = ConfigDict(strict=True)

    sku: str
    due: date


class Order(BaseModel):
    id: int
    lines: list[Line] = []
    note: str = Field(default="", alias="orderNote")


class Receipt(BaseModel):
    order: Order
    total: int


ORDER = Order(id=7, lines=[Line(sku="a", due=date(2026, 1, 2))], orderNote="soon")
PLAIN = {"id": 7, "lines": [{"sku": "a", "due": "2026-01-02"}], "orderNote": "soon"}

seen: list[Any] = []


@palermo.job(name="models.ship", keep_result=True)
def ship(order: Order, *others: Order, gift: Order | None = None, width: int = 1) -> Receipt:
    seen.append((order, others, gift, width))
    return Receipt(order=order, total=len(others))


@palermo.job(name="models.wrong", keep_result=True)
def wrong() -> Receipt:
    return {"total": "many"}  # type: ignore[return-value]


@palermo.job(name="models.batched", batch=5)
def batched(orders: list[Order]) -> None:
    seen.append(list(orders))


@pytest.fixture
def test() -> Iterator[Palermo]:
    seen.clear()
    with Palermo(raise_failures=False) as test:
        yield test


def test_a_job_gets_and_returns_the_models_of_its_annotations(test: Palermo) -> None:
    job, refused = ship.enqueue(ORDER, ORDER, gift=ORDER), wrong.enqueue()
    batched.enqueue(ORDER)
    batched.enqueue(Order(id=8))
    test.work()

    assert seen == [(ORDER, (ORDER,), ORDER, 1), [ORDER, Order(id=8)]]
    assert job.result(10) == Receipt(order=ORDER, total=1)
    with pytest.raises(ResultRefused, match="it is invalid: order: Field required"):
        refused.result(10)


def test_pages_and_other_programs_see_plain_values(test: Palermo) -> None:
    ship.enqueue(ORDER)
    palermo.enqueue("models.ship", [PLAIN])

    assert [row["args"] for row in test.inspector().jobs.list("jobs")] == [[PLAIN], [PLAIN]]
    test.assert_enqueued(ship, ORDER)
    test.work()
    assert [order for order, *_ in seen] == [ORDER, ORDER]


def test_what_is_not_valid_is_refused_in_caller_and_worker(test: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentsInvalid, match=r"argument order of job 'models\.ship' is invalid: id: Input"):
        ship.enqueue({"id": "x"})  # type: ignore[arg-type]
    test.refute_enqueued()

    with monkeypatch.context() as patch:
        patch.setattr(registry, "_jobs", {})
        palermo.enqueue("models.ship", [{"lines": []}])
    test.work()

    [failed] = test.inspector().failed.list()
    assert failed["error"]["class"] == "palermo.errors.ArgumentsInvalid"
    assert "argument order of job 'models.ship' is invalid: id: Field required" in failed["error"]["message"]


def test_a_unique_job_is_the_same_for_equal_models(test: Palermo) -> None:
    jobs = [ship.options(unique="until_done").enqueue(order) for order in (ORDER, PLAIN)]  # type: ignore[arg-type]

    assert [job.enqueued for job in jobs] == [True, False]
    assert ship.dequeue(ORDER) == 1


def test_a_program_without_models_imports_no_pydantic() -> None:
    program = (
        "import sys, palermo\n"
        "@palermo.job\ndef add(a: int, b: int = 1) -> int: return a + b\n"
        "from palermo.testing import Palermo\n"
        "with Palermo() as test: add.enqueue(1); test.work()\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)

    assert done.stdout == "False\n"
