"""Events in the executor: what a subscribing function is called with."""

from typing import Any

import pytest

from palermo.core.lifecycle import Succeeded
from palermo.core.message import Message
from palermo.core.topics import OCTETS, as_job
from palermo.jobs.current import current_job
from palermo.jobs.definition import JobSubscription
from tests.worker.bench import Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()

    def handle(payload: Any) -> None:
        job = current_job()
        bench.seen.append((payload, job.topic if job else None))

    bench.job(handle, name="mail", arguments="one", subscribes=JobSubscription(group="mail", topics=("order.*",)))
    bench.job(lambda *args, **kwargs: None, name="shop.delete")
    return bench


def event(body: bytes, content_type: str = "application/json", group: str = "mail") -> Message:
    return as_job(
        Message(id="e1", queue="shop_mail", job="", body=body, content_type=content_type),
        group=group,
        topic="order.paid",
    )


@pytest.mark.parametrize(
    ("body", "content_type", "payload"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b"[1, 2]", "application/json", [1, 2]),
        (b'{"args": [], "kwargs": {}}', OCTETS, {"args": [], "kwargs": {}}),
        (b"7", OCTETS, 7),
        (b"hello", OCTETS, b"hello"),
        (b"\xff\x00", OCTETS, b"\xff\x00"),
        (b"", OCTETS, None),
        (b"null", "application/json", None),
    ],
)
def test_the_payload_is_the_one_argument_whatever_it_is(
    bench: Bench, body: bytes, content_type: str, payload: Any
) -> None:
    result = bench.executor().run(event(body, content_type))

    assert isinstance(result, Succeeded), result
    assert bench.seen == [(payload, "order.paid")]


def test_an_event_is_nothing_for_a_job_that_subscribes_to_none(bench: Bench) -> None:
    result = bench.executor().run(event(b"[]", group="shop.delete"))

    assert result.failure.exception_class == "palermo.errors.HeaderInvalid"  # type: ignore[union-attr]
    assert "'order.paid'" in result.failure.message  # type: ignore[union-attr]
