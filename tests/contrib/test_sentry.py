"""The Sentry integration, with Sentry's own SDK and a transport that keeps what would be sent."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

import palermo
from palermo import tracing
from palermo.client.client import Client
from palermo.contrib.sentry import PalermoIntegration
from palermo.core.failure import Failure
from palermo.core.lifecycle import Raised, Retrying
from palermo.core.message import Message
from palermo.worker.child.executor import Executor


class Kept(Transport):
    """Keeps envelopes."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [item.payload.json for item in envelope.items if item.payload.json]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if "exception" in item]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction"]


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr(tracing, "_header_sources", [])
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.example/1",
            transport=kept,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[PalermoIntegration()],
        )
        PalermoIntegration.setup_once()  # Sentry calls it only once in a process
        yield kept
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)


def message(job: str, **more: Any) -> Message:
    return Message(id="7", queue="mail", job=job, body=b"[]", **more)


def job(function: Callable[[], None], **options: Any) -> str:
    name: str = palermo.job(name=f"shop.{function.__name__}", **options)(function).definition.name
    return name


def test_a_failed_job_is_one_event_with_its_exception_and_breadcrumbs(sentry: Kept, executor: Executor) -> None:
    def send() -> None:
        sentry_sdk.add_breadcrumb(message="connecting")
        raise ConnectionError("no route")

    assert isinstance(executor.run(message(job(send))), Raised)

    [event] = sentry.errors
    [exception] = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("ConnectionError", "no route")
    assert exception["stacktrace"]["frames"][-1]["function"] == "send"
    assert exception["mechanism"] == {"type": "palermo", "handled": False}
    assert event["tags"] == {"palermo.job": "shop.send", "palermo.queue": "mail"}
    about = {"id": "7", "job": "shop.send", "queue": "mail", "attempt": 1, "worker": "pid:1@h/worker-1"}
    assert event["contexts"]["palermo"] == about
    assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["connecting"]
    assert event["transaction"] == "shop.send"


def test_a_try_that_is_retried_is_no_event_and_the_last_one_is(sentry: Kept, executor: Executor) -> None:
    def flaky() -> None:
        sentry_sdk.set_tag(f"seen {len(sentry.errors)}", "1")
        sentry_sdk.add_breadcrumb(message="of one try")
        raise ValueError

    name = job(flaky, retries=1)
    assert isinstance(executor.run(message(name)), Retrying)
    assert sentry.errors == []

    executor.run(message(name, retries=1, policy_retries=1))
    executor.run(message(name, retries=1, policy_retries=1))

    assert [event["contexts"]["palermo"]["attempt"] for event in sentry.errors] == [2, 2]
    # The last run sees nothing of those before.
    assert ["seen 0" in event["tags"] for event in sentry.errors] == [True, False]
    assert [len(event["breadcrumbs"]["values"]) for event in sentry.errors] == [1, 1]


def test_a_job_that_is_not_there_and_a_crash_are_events_too(sentry: Kept, executor: Executor) -> None:
    def crash() -> None:
        """It never gets so far."""

    failure = Failure(exception_class="palermo.errors.JobCrashed", message="killed", stack_trace="", failed_at=1)
    executor.run(message("shop.nobody"))
    executor.crashed(message(job(crash)), failure)

    values = [event["exception"]["values"][0] for event in sentry.errors]
    assert [value["type"] for value in values] == ["JobNotFound", "JobCrashed"]
    assert {value["module"] for value in values} == {"palermo.errors"}


def test_a_run_continues_the_trace_of_its_enqueue(sentry: Kept, executor: Executor, client: Client) -> None:
    def send() -> None:
        raise ValueError

    name = job(send)
    with sentry_sdk.start_transaction(name="POST /orders") as request:
        client.enqueue(name)
    [stored] = client.run(lambda broker: broker.browse("jobs")).messages

    executor.run(stored)

    [_, run] = sentry.transactions
    assert (run["transaction"], run["contexts"]["trace"]["op"]) == ("shop.send", "queue.process")
    traces = {each["contexts"]["trace"]["trace_id"] for each in (*sentry.transactions, *sentry.errors)}
    assert traces == {request.trace_id}
    assert run["contexts"]["trace"]["parent_span_id"] == request.span_id

    sentry.items.clear()
    sentry_sdk.get_global_scope().set_client(None)
    assert isinstance(executor.run(message(name)), Raised)
    client.enqueue(name)
    assert sentry.items == [], "Sentry is off"
