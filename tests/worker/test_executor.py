"""The executor: every way in which a message becomes a result, without a process."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

import palermo
from palermo.contract.serialization import Accept
from palermo.core.lifecycle import Succeeded
from palermo.core.message import EVENT_ID, TOPIC, Message
from palermo.core.topics import OCTETS, as_job
from palermo.core.unique_keys import Mode, UniqueLock, with_lock
from palermo.jobs import current
from palermo.jobs.definition import JobSubscription
from tests.helpers import PACKAGE
from tests.worker.bench import Bench

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")


def test_a_function_runs_with_its_arguments(bench: Bench) -> None:
    bench.job(lambda a, b=2: bench.seen.append((a, b)))
    bench.job(lambda value: bench.seen.append(value), name="one", arguments="one")

    assert bench.run([1]) == Succeeded()
    assert bench.run({"a": 3, "b": 4}) == Succeeded()
    assert bench.run({"args": [5], "kwargs": {"b": 6}}, arguments="both") == Succeeded()
    assert bench.run({"any": ["thing"]}, job="one", expires_at=1_235.0) == Succeeded()
    assert bench.seen == [(1, 2), (3, 4), (5, 6), {"any": ["thing"]}]


def test_a_unique_job_without_its_key_runs_and_is_told_of(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.job(lambda: None, unique="until_done")

    keyed = with_lock(bench.message(), UniqueLock(key="job:1", mode=Mode.DONE))
    assert bench.executor().run(keyed) == Succeeded()
    assert bench.run(extra={"recurring": "nightly"}) == Succeeded()
    assert caplog.messages == []
    assert bench.run() == Succeeded()
    [text] = caplog.messages
    assert "unique job was enqueued without a key" in text
    assert "id=1 job=job" in text


def test_octets_are_given_as_bytes_or_text_as_the_job_wants_them(bench: Bench) -> None:
    def octets(body: bytes) -> None:
        bench.seen.append(body)

    def text(body: str) -> None:
        bench.seen.append(body)

    bench.job(octets, name="octets")
    bench.job(text, name="text")
    bench.job(lambda body: bench.seen.append(body), name="default", default=True)
    bench.job(lambda name, size=1: bench.seen.append((name, size)), name="plain")

    for job, body in (("octets", b"[1]"), ("octets", b"\xff"), ("octets", b""), ("text", b"[1]"), ("default", b"\xff")):
        assert bench.run(job=job, body=body, content_type=OCTETS) == Succeeded()
    assert bench.run(job="default", body=b'{"body": 5}', content_type=OCTETS) == Succeeded()

    assert bench.seen == [b"[1]", b"\xff", b"", "[1]", b"\xff", 5]
    bench.seen.clear()
    for body in (b"\xff", b"no JSON", b'["a", 2]', b'{"name": "b"}', b"7"):
        assert bench.run(job="plain", body=body, content_type=OCTETS) == Succeeded()
    assert bench.seen == [(b"\xff", 1), (b"no JSON", 1), ("a", 2), ("b", 1), (7, 1)]


def test_nothing_unsigned_is_run_by_a_worker_that_wants_signatures(bench: Bench) -> None:
    def octets(body: bytes) -> None: ...

    bench.job(octets, default=True)
    bench.accept = Accept.only("signed")

    for kind in (OCTETS, "application/json"):
        assert bench.failure(body=b"[1]", content_type=kind).exception_class == "palermo.errors.MediaTypeRefused"


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"defect": "header 'retries' is 'x'"}, "HeaderInvalid", "header 'retries' is 'x'"),
        ({"job": "nobody", "defect": "told first"}, "HeaderInvalid", "told first"),
        ({"job": ""}, "JobUnnamed", "@palermo.job(queue='q', default=True)"),
        ({"job": "shop.mail.send"}, "JobNotFound", "no job 'shop.mail.send' in this worker. Start it with"),
        ({"content_type": "application/x-nothing"}, "MediaTypeUnknown", "application/x-nothing"),
        ({"content_type": "application/x-pickle"}, "MediaTypeRefused", "--accept pickle"),
        ({"body": b"{"}, "DecodeError", ""),
        ({"body": b"[]", "content_encoding": "gzip"}, "DecodeError", ""),
        ({"body": b"[]", "arguments": "some"}, "DecodeError", 'header "arguments"'),
        ({"body": b"[1, 2, 3]"}, "ArgumentsInvalid", "too many positional arguments"),
        ({"body": b'{"nobody": 1}'}, "ArgumentsInvalid", "nobody"),
        ({"expires_at": 1_234.8}, "JobExpired", "before a worker started it"),
        ({"job": "two", "body": b"{", "content_type": OCTETS}, "DecodeError", "is not JSON"),
        ({"job": "text", "body": b"\xff", "content_type": OCTETS}, "DecodeError", ""),
        ({"extra": {TOPIC: "order.paid", EVENT_ID: "e1"}}, "HeaderInvalid", "'order.paid'"),
    ],
)  # fmt: skip
def test_what_keeps_a_job_from_running_is_a_failure_of_its_own_class(
    bench: Bench, more: dict[str, Any], error: str, said: str
) -> None:
    def text(body: str) -> None:
        bench.seen.append(body)

    palermo.failure_backend(lambda report: told.append(report.failure))
    told: list[Any] = []
    bench.job(lambda a=None: bench.seen.append(a), retries=5)
    bench.job(lambda event_name, payload: bench.seen.append(payload), name="two", retries=5)
    bench.job(text, name="text", retries=5)

    failure = bench.failure(**more)

    assert told == [failure], "no other try can mend it"
    assert failure.exception_class == f"palermo.errors.{error}"
    assert said in failure.message
    assert failure.stack_trace.splitlines()[-1].startswith(f"palermo.errors.{error}: ")
    assert str(PACKAGE / "worker") not in failure.stack_trace
    assert bench.seen == []


async def raises_in_a_loop() -> None:
    raise ValueError("no way")


def raises() -> None:
    raise ValueError("no way")


@pytest.mark.parametrize("job", [raises, raises_in_a_loop])
def test_a_job_fails_with_a_trace_that_begins_in_its_own_code(bench: Bench, job: Any) -> None:
    bench.job(job)

    failure = bench.failure()

    assert (failure.exception_class, failure.message, failure.failed_at) == ("ValueError", "no way", 1_234)
    assert failure.stack_trace.splitlines()[1].strip().startswith(f'File "{__file__}"')
    assert str(PACKAGE / "worker") not in failure.stack_trace


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "kind", [StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, RecursionError, palermo.DontProcess, Rude]
)
def test_whatever_a_job_raises_fails_it(bench: Bench, kind: type[BaseException]) -> None:
    def job() -> None:
        if kind is RecursionError:
            job()
        raise kind

    bench.job(job)

    failure = bench.failure()

    assert failure.exception_class.endswith(kind.__name__)
    assert len(failure.stack_trace) < 17_000


@pytest.mark.parametrize(
    ("body", "content_type", "payload"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b'{"args": [], "kwargs": {}}', OCTETS, {"args": [], "kwargs": {}}),
        (b"7", OCTETS, 7),
        (b"\xff\x00", OCTETS, b"\xff\x00"),
        (b"", OCTETS, None),
    ],
)
def test_an_events_payload_is_the_one_argument(bench: Bench, body: bytes, content_type: str, payload: Any) -> None:
    def handle(payload: Any) -> None:
        job = palermo.current_job()
        bench.seen.append((payload, job and job.topic))

    bench.job(handle, name="mail", arguments="one", subscribes=JobSubscription(group="mail", topics=("order.*",)))

    raw = Message(id="e1", queue="shop_mail", job="", body=body, content_type=content_type)

    assert bench.executor().run(as_job(raw, group="mail", topic="order.paid")) == Succeeded()
    assert bench.seen == [(payload, "order.paid")]


def test_each_run_has_an_object_and_context_variables_of_its_own(bench: Bench) -> None:
    class Job:
        def process(self) -> None:
            bench.seen.append((self, VARIABLE.get()))
            VARIABLE.set("set")

    bench.job(Job)
    executor = bench.executor()
    executor.run(bench.message())
    executor.run(bench.message())

    (first, before), (second, after) = bench.seen
    assert first is not second
    assert before == after == VARIABLE.get() == "unset"


def test_the_current_job_is_one_object_in_its_job_and_gone_after_it(bench: Bench) -> None:
    def job() -> None:
        bench.seen.append(palermo.current_job())
        assert palermo.current_job() is bench.seen[-1]

    bench.job(job)
    more = {"topic": "no event", "parent-id": "7"}

    assert bench.run(retries=2, created_at=5, tenant="t", extra=more) == Succeeded()

    assert bench.seen == [
        current.CurrentJob(
            id="1", queue="q", job="job", attempt=3, worker="pid:1@h/worker-1", created_at=5, tenant="t", parent="7"
        )
    ]
    assert palermo.current_job() is None


def test_the_current_job_is_known_in_the_tasks_of_a_coroutine(bench: Bench) -> None:
    async def ask() -> Any:
        return palermo.current_job()

    async def job() -> None:
        bench.seen.extend(
            await asyncio.gather(ask(), asyncio.create_task(ask()), asyncio.to_thread(palermo.current_job))
        )

    bench.job(job)

    assert bench.run() == Succeeded()
    assert [one.id for one in bench.seen] == ["1", "1", "1"]
