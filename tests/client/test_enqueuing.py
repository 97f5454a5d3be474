"""From a job and its arguments to a message in a queue: every form of enqueue."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo import errors
from palermo.client import client as clients
from palermo.client import decorator, forking, prepare
from palermo.client.client import Client
from palermo.contract import clock
from palermo.contract.scheduled import ScheduledFilter
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.testing.movable_clock import MovableClock
from tests.client.conftest import Waiting
from tests.journal.reading import Journal


@palermo.job(name="studio.resize")
def resize(path: str, width: int = 640) -> None: ...


@palermo.job(queue="mail", name="shop.SendMail")
class SendMail(palermo.JobClass):
    def process(self, to: str, *, subject: str = "hi") -> None: ...


def test_an_enqueued_job_is_a_message_that_any_client_can_read(client: Client, waiting: Waiting) -> None:
    before = int(time.time())

    job = resize.enqueue("x.png", width=3)

    (message,) = waiting()
    assert (job.id, job.queue, job.job, bool(job)) == (message.id, "jobs", "studio.resize", True)
    assert len(job.id) == 36
    assert (message.job, message.queue, message.content_type) == ("studio.resize", "jobs", "application/json")
    assert (json.loads(message.body), message.arguments) == ({"args": ["x.png"], "kwargs": {"width": 3}}, "both")
    assert message.preview == "'x.png', width=3"
    assert message.created_at is not None
    assert before <= message.created_at <= time.time()
    assert (message.retries, message.failure, message.extra) == (None, None, {})


def test_options_apply_only_to_jobs_enqueued_through_them(client: Client, waiting: Waiting) -> None:
    slow = resize.options(queue="slow", id="one", serializer="msgpack", compression="gzip")

    slow.enqueue("x.png")
    resize.enqueue("y.png")

    (message,) = waiting("slow")
    assert (message.id, message.content_type, message.content_encoding) == ("one", "application/msgpack", "gzip")
    assert [message.content_type for message in waiting("jobs")] == ["application/json"]
    assert "studio.resize with queue='slow', id='one'" in repr(slow)


def test_options_come_from_the_call_the_declaration_and_the_settings(client: Client, waiting: Waiting) -> None:
    @palermo.job(name="shop.packed", serializer="msgpack")
    def packed() -> None: ...

    other = clients.use(Client(Settings(url=client.settings.url, compression="gzip", default_queue="other")))

    packed.enqueue()
    packed.options(serializer="json", compression="").enqueue()

    found = other.run(lambda broker: broker.browse("other")).messages
    assert [(message.content_type, message.content_encoding) for message in found] == [
        ("application/msgpack", "gzip"),
        ("application/json", ""),
    ]


def test_a_job_is_enqueued_by_name_without_its_code(client: Client, waiting: Waiting) -> None:
    job = palermo.enqueue("elsewhere.Work", ["x"], {"y": 1}, queue="slow", id="mine")
    palermo.enqueue("elsewhere.Work")

    assert (job.id, job.queue, job.job) == ("mine", "slow", "elsewhere.Work")
    assert [json.loads(message.body) for message in waiting("slow")] == [{"args": ["x"], "kwargs": {"y": 1}}]
    assert [message.body for message in waiting("jobs")] == [b"[]"]


def test_a_job_by_name_follows_its_declaration_if_its_code_is_here(client: Client, waiting: Waiting) -> None:
    SendMail.enqueue("a@b.c", subject="hello")
    palermo.enqueue("shop.SendMail", ["a@b.c"])

    assert [message.job for message in waiting("mail")] == ["shop.SendMail"] * 2
    with pytest.raises(errors.ArgumentsInvalid):
        palermo.enqueue("shop.SendMail", [1, 2, 3])


def test_a_body_that_is_one_argument_goes_out_as_it_is(client: Client, waiting: Waiting) -> None:
    @palermo.job(name="shop.take", arguments="one")
    def take(event: Any) -> None: ...

    for event in ([1, 2], {"a": 1}, "text", 3, {}):
        take.enqueue(event)

    assert [json.loads(message.body) for message in waiting()] == [[1, 2], {"a": 1}, "text", 3, {}]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: resize.enqueue(), errors.ArgumentsInvalid),  # type: ignore[call-arg]
        (lambda: resize.enqueue(object()), errors.EncodeError),  # type: ignore[arg-type]
        (lambda: resize.enqueue("x" * 17_000_000), errors.BodyTooLarge),
        (lambda: resize.options(serializer="yaml").enqueue("x"), errors.MediaTypeUnknown),
        (lambda: palermo.enqueue("x", queue="failed"), errors.QueueNameInvalid),
        (lambda: palermo.enqueue("studio.resize", ["x"], queue=""), errors.QueueNameInvalid),
        (lambda: palermo.enqueue("x", id=3), errors.IdInvalid),  # type: ignore[arg-type]
        (lambda: palermo.enqueue(""), errors.OptionInvalid),
        (lambda: palermo.enqueue(None), errors.OptionInvalid),  # type: ignore[arg-type]
        (lambda: palermo.enqueue(resize, ["x"]), errors.OptionInvalid),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_enqueued_is_refused_and_leaves_nothing_behind(
    call: Callable[[], Any], error: type[Exception], client: Client, waiting: Waiting
) -> None:
    with pytest.raises(error):
        call()

    with pytest.raises(errors.NotFound):
        waiting()


def test_a_job_may_have_arguments_named_self_and_cls(client: Client, waiting: Waiting) -> None:
    @palermo.job(name="shop.any")
    def take(**kwargs: object) -> object:
        return kwargs

    @palermo.job(name="shop.Any")
    class Take:
        def process(self, **kwargs: object) -> None: ...

    named = {"self": 1, "cls": 2, "definition": 3, "job": 4, "delay": 5, "args": 6}
    take.enqueue(**named)
    take.options(queue="jobs").enqueue(**named)
    take.enqueue_in(60, **named)
    asyncio.run(take.enqueue_async(**named))
    Take.enqueue(**{name: value for name, value in named.items() if name != "self"})  # type: ignore[attr-defined]

    assert take(**named) == named
    assert [json.loads(message.body) for message in waiting()][:3] == [named, named, named]
    assert take.dequeue(**named) == 3
    with pytest.raises(errors.ArgumentsInvalid):
        resize.dequeue("x", 1, 2)  # type: ignore[call-arg]


def test_an_instant_that_is_none_does_not_enqueue_the_job_now(client: Client) -> None:
    for enqueue in (resize.enqueue_at, resize.options(queue="mail").enqueue_at):
        with pytest.raises(errors.OptionInvalid, match=r"enqueue_at got None"):
            enqueue(None, "x.png")  # type: ignore[arg-type]

    assert [row["name"] for row in Inspector(client).queues.list()] == ["failed"]


def test_a_delay_counts_from_the_call_however_slow_the_client(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = MovableClock()
    before = clock.use(moved)

    def slow() -> Client:
        moved.advance(3.0)
        return client

    monkeypatch.setattr(decorator, "_client", slow)
    try:
        moved.freeze()
        called = moved.now()
        later, now = resize.enqueue_in(60, "x.png"), resize.options(delay=60).enqueue_in(0, "x.png")
        found = client.run(lambda broker: broker.scheduled(ScheduledFilter())).messages
    finally:
        clock.use(before)

    assert [(message.id, message.run_at) for message in found] == [(later.id, called + 60.0)]
    assert now.status() == "pending"


# -- hooks


def test_a_before_enqueue_hook_may_veto_one_and_some_of_many(client: Client, waiting: Waiting) -> None:
    @palermo.hook
    def before_enqueue(definition: Any, path: str, width: int = 640) -> bool:
        return path != "secret.png"

    one, awaited = resize.enqueue("secret.png"), asyncio.run(resize.enqueue_async("secret.png"))
    many = resize.enqueue_many([("a.png",), ("secret.png",), ("c.png",)])

    assert not one
    assert not awaited
    assert [bool(job) for job in many] == [True, False, True]
    assert [message.id for message in waiting()] == [many[0].id, many[2].id]


def test_an_after_enqueue_hook_runs_once_the_job_is_stored(client: Client, waiting: Waiting) -> None:
    seen = []

    @palermo.hook
    def after_enqueue(definition: Any, path: str) -> None:
        seen.append((definition.name, path, len(waiting())))

    resize.enqueue("x.png")

    assert seen == [("studio.resize", "x.png", 1)]


# -- many


def test_many_are_stored_in_their_order(client: Client, waiting: Waiting) -> None:
    jobs = resize.enqueue_many([("a.png",), ["b.png", 3], {"path": "c.png"}])

    messages = waiting()
    assert resize.enqueue_many([]) == []
    assert [(job.id, {}) for job in jobs] == [(message.id, message.extra) for message in messages]
    assert [json.loads(message.body) for message in messages] == [["a.png"], ["b.png", 3], {"path": "c.png"}]
    more_than_a_batch = resize.options(queue="slow").enqueue_many((str(n),) for n in range(3 * prepare.BATCH + 7))
    assert [job.id for job in more_than_a_batch] == [message.id for message in waiting("slow")]


def test_many_are_read_as_they_go_out(client: Client, waiting: Waiting) -> None:
    seen = 0

    def calls() -> Iterator[tuple[str]]:
        nonlocal seen
        for number in range(3):
            if number == 2:
                seen = len(waiting())
            yield ("x" * prepare.BATCH_BYTES,)

    resize.enqueue_many(calls())

    assert 1 <= seen <= 2


def test_a_generator_of_calls_may_itself_enqueue(client: Client, waiting: Waiting) -> None:
    def calls() -> Iterator[tuple[str]]:
        for number in range(3):
            SendMail.enqueue(str(number))
            yield (str(number),)

    resize.enqueue_many(calls())

    assert (len(waiting()), len(waiting("mail"))) == (3, 3)


@pytest.mark.parametrize(
    ("options", "good", "bad", "error"),
    [
        ({}, 3 * prepare.BATCH, (1, 2, 3), errors.ArgumentsInvalid),
        ({}, 50, ("x" * 17_000_000,), errors.BodyTooLarge),
        ({"unique": "until_done"}, 50, ("x" * 17_000_000,), errors.BodyTooLarge),
    ],
)
def test_jobs_before_a_wrong_one_are_stored_and_counted(
    client: Client, waiting: Waiting, options: dict[str, Any], good: int, bad: tuple[Any, ...], error: type[Exception]
) -> None:
    calls = [*((str(number),) for number in range(good)), bad, ("behind it",)]

    with pytest.raises(error) as raised:
        resize.options(**options).enqueue_many(calls)

    assert raised.value.__notes__ == [f"{good:,} jobs of this enqueue_many are known to be stored."]
    assert len(waiting()) == good


def test_no_batch_behind_a_refused_one_is_stored(client: Client, waiting: Waiting, tmp_path: Path) -> None:
    resize.enqueue("first")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        refuses = "before insert on job when instr(new.body, 'bad') begin select raise(abort, 'no'); end"
        db.execute(f"create trigger refuse {refuses}")

    with pytest.raises(errors.PalermoError):
        resize.enqueue_many([("bad",)] * prepare.BATCH + [("good",)])

    assert len(waiting()) == 1


def test_jobs_are_counted_though_their_hook_raises(client: Client, waiting: Waiting) -> None:
    @palermo.hook
    def after_enqueue(definition: Any, path: str) -> None:
        raise RuntimeError(path)

    with pytest.raises(RuntimeError, match="0") as raised:
        resize.enqueue_many([(str(number),) for number in range(3)])

    assert raised.value.__notes__ == ["3 jobs of this enqueue_many are known to be stored."]
    assert len(waiting()) == 3


@pytest.mark.parametrize("call", ["ab", None])
def test_a_call_that_is_neither_tuple_nor_dict_is_refused(call: Any, client: Client) -> None:
    with pytest.raises(errors.OptionInvalid, match="Pass a tuple"):
        resize.enqueue_many([call])
    with pytest.raises(errors.OptionInvalid, match="id='x' cannot be used with enqueue_many"):
        resize.options(id="x").enqueue_many([("a",)])


# -- asyncio, threads and clients


def test_a_job_enqueued_just_before_the_close_is_in_the_journal(client: Client) -> None:
    jobs = [resize.enqueue("a.png") for _ in range(2)]  # the second one is written by this thread
    client.close()

    assert list(Journal(client).ids("enqueued")) == [job.id for job in jobs]


def test_an_asyncio_program_enqueues_side_by_side_and_gets_the_errors(client: Client, waiting: Waiting) -> None:
    async def main() -> list[palermo.Job]:
        with pytest.raises(errors.ArgumentsInvalid):
            await SendMail.enqueue_async()  # type: ignore[call-arg]
        return await asyncio.gather(*(resize.enqueue_async(str(number)) for number in range(50)))

    jobs = asyncio.run(main())

    assert {job.id for job in jobs} == {message.id for message in waiting()}
    assert sum(thread.name == "palermo-client" for thread in threading.enumerate()) == 1


def test_enqueuing_on_the_clients_own_thread_is_refused_and_does_not_hang(client: Client) -> None:
    async def ask(broker: Any) -> None:
        resize.enqueue("x")

    with pytest.raises(RuntimeError, match="in the client's own thread"):
        client.run(ask)


def test_a_program_that_cannot_start_a_thread_may_enqueue_later(
    client: Client, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From Python 3.12 on, a thread that outlives the main one may start none either.
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(errors.BrokerUnavailable, match="cannot be started"):
            resize.enqueue("a")

    resize.enqueue("b")
    assert [message.body for message in waiting()] == [b'["b"]']


def test_a_client_that_was_closed_opens_again_when_used(client: Client, waiting: Waiting) -> None:
    resize.enqueue("x")
    client.close()
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "palermo-client"]

    resize.enqueue("y")
    assert len(waiting()) == 2

    with Client(client.settings) as other:
        other.enqueue("x")
        assert len(forking.running) == 2
    assert len(forking.running) == 1


def test_the_settings_decide_until_a_program_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALERMO_URL", f"sqlite:///{tmp_path}/variable.db")
    resize.enqueue("x")
    assert (tmp_path / "variable.db").exists()

    other = palermo.connect(f"sqlite:///{tmp_path}/other.db", default_queue="elsewhere")
    resize.enqueue("y")

    assert clients.default_client() is other
    assert len(other.run(lambda broker: broker.browse("elsewhere")).messages) == 1
    assert "other.db" in repr(other)


def test_palermo_inspector_is_a_call_also_after_its_module_is_imported(client: Client) -> None:
    import palermo.inspector.inspector as module

    assert isinstance(palermo.inspector(), module.Inspector)
    assert palermo.inspector().workers.list() == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"args": "cat.png"}, "\"args\" is 'cat.png', of type str"),
        ({"args": b"cat.png"}, "of type bytes; give a list or a tuple"),
        ({"args": {"cat.png": 1}}, "of type dict; give a list or a tuple"),
        ({"args": 7}, '"args" is 7, of type int'),
        ({"kwargs": ["width"]}, "of type list; give a dict"),
    ],
)
def test_arguments_that_are_no_list_or_dict_are_refused(client: Client, given: dict[str, Any], told: str) -> None:
    for job in (resize, "client.without_code"):
        with pytest.raises(errors.ArgumentsInvalid, match=told):
            client.enqueue(job, **given)
