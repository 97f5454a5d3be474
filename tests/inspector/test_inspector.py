from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.contract.serialization import Serializers
from palermo.contract.sweep import SweepProgress
from palermo.core.message import Message
from palermo.errors import EncodeError, NotFound, QueueNameInvalid, SignatureInvalid
from palermo.inspector.changes import Rewriter
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.views.filter import EVERYTHING as ALL
from palermo.views.filter import JobFilter
from tests.inspector.jobs import failure, message, publish, publish_failed


def ids(inspector: Inspector, queue: str) -> list[str]:
    try:
        return [row["id"] for row in inspector.jobs.list(queue)]
    except NotFound:
        return []


def waiting(client: Client, queue: str) -> list[Message]:
    return list(client.run(lambda broker: broker.browse(queue)).messages)


def test_jobs_are_listed_in_pages_from_either_end(client: Client, inspector: Inspector) -> None:
    publish(client, *(message(str(n), n) for n in range(20)))

    first = inspector.jobs.list("mail", limit=5)
    newest = inspector.jobs.list("mail", offset=1, limit=2, newest=True)

    assert [row["id"] for row in first] == ["0", "1", "2", "3", "4"]
    assert (len(first), first[-1]["id"], [row["id"] for row in first[1:3]]) == (5, "4", ["1", "2"])
    assert isinstance(first, Sequence)
    assert [row["id"] for row in newest] == ["18", "17"]
    assert inspector.queues.size("mail") == first.total == 20
    assert inspector.jobs.count_matching("shop.send", [3], queue="mail") == 1


@pytest.mark.parametrize("act", ["jobs.list", "queues.size", "queues.purge", "queues.delete"])
def test_a_queue_that_is_not_there_is_not_found(inspector: Inspector, act: str) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        attrgetter(act)(inspector)("nowhere")
    with pytest.raises(QueueNameInvalid):
        attrgetter(act)(inspector)("")


def test_a_failed_job_is_shown_and_requeued_by_its_id(client: Client, inspector: Inspector) -> None:
    publish_failed(client, *((message(id, int(id)), failure()) for id in ("0", "1", "2", "0")))
    listing = inspector.failed.list()  # two copies of a job are one row and count once
    assert ([row["id"] for row in listing], listing.total, inspector.failed.count()) == (["0", "1", "2"], 3, 3)
    last = inspector.failed.list(offset=2, limit=1, newest=True, filter=JobFilter(queue="mail"))
    assert ([row["id"] for row in last], last.total) == (["0"], 3)

    row = inspector.failed.show("1")
    taken = inspector.failed.requeue("1")

    assert (row["queue"], row["args"], row["retries"], row["error"]["class"]) == ("mail", [1], 0, "ValueError")
    assert [job.id for job in taken] == ["1"]
    assert ids(inspector, "failed") == ["0", "2", "0"]
    (requeued,) = waiting(client, "mail")
    assert (requeued.id, requeued.retries, requeued.failure) == ("1", 1, None)


@pytest.mark.parametrize(
    "act",
    [
        lambda inspector: inspector.failed.requeue(ALL, to_queue="slow"),
        lambda inspector: inspector.failed.discard(ALL, queue="mail"),
        lambda inspector: inspector.jobs.cancel_waiting("mail", ["1"], yes=True),
        lambda inspector: inspector.jobs.discard("mail", ["1"], args=[]),
        lambda inspector: inspector.jobs.edit("1", quue="slow"),
        lambda inspector: inspector.jobs.run_again("1", on_taken=print),
    ],
)
def test_a_misspelled_option_is_refused(inspector: Inspector, act: Callable[[Inspector], object]) -> None:
    with pytest.raises(TypeError, match="unknown options"):
        act(inspector)


@pytest.mark.parametrize(
    ("serializer", "compression", "kept"),
    [("json", "gzip", "json"), ("msgpack", "", "msgpack"), ("pickle", "", "json")],
)
def test_new_arguments_are_written_as_the_old_ones_were(
    client: Client, inspector: Inspector, serializer: str, compression: str, kept: str
) -> None:
    encoded = Serializers.default().encode(
        ["x"], {}, job="shop.send", id="1", serializer=serializer, compression=compression
    )
    written = {"content_type": encoded.content_type, "content_encoding": encoded.content_encoding}
    old = message("1", body=encoded.body, preview="'x'", extra={"traceparent": "x"}, **written)
    publish_failed(client, (old, failure()))

    inspector.failed.requeue("1", args=["y"], kwargs={"width": 3})

    (requeued,) = waiting(client, "mail")
    (row,) = inspector.jobs.list("mail")
    assert (row["args"], row["kwargs"], row["preview"]) == (["y"], {"width": 3}, "'y', width=3")
    assert requeued.extra["traceparent"] == "x"
    assert requeued.content_type == Serializers.default().get(kept).media_type
    assert requeued.content_encoding == compression


def test_new_arguments_that_cannot_be_written_leave_the_job_where_it_is(client: Client, inspector: Inspector) -> None:
    signed = Serializers.default(signing_keys=["k" * 32]).encode(["x"], {}, job="shop.send", id="2", sign=True)
    publish_failed(
        client, (message("1"), failure()), (message("2", body=signed.body, content_type=signed.content_type), failure())
    )

    with pytest.raises(EncodeError):
        inspector.failed.requeue("1", args=[object()])
    with pytest.raises(SignatureInvalid, match="remains in `failed`"):  # the key is not here
        inspector.failed.requeue("2", args=["y"])

    assert ids(inspector, "failed") == ["1", "2"]


def test_failed_is_trimmed_by_age_and_count_and_a_requeue_is_told(client: Client, inspector: Inspector) -> None:
    publish_failed(client, *((message(str(n)), failure(at=1_700_000_000 + n)) for n in range(6)))
    told: list[SweepProgress] = []

    assert inspector.failed.trim(max_age=10, now=1_700_000_012) == 2
    assert inspector.failed.trim(max_count=3) == 1
    assert inspector.failed.trim() == 0
    assert ids(inspector, "failed") == ["3", "4", "5"]
    inspector.failed.requeue(ALL, progress=told.append)
    assert (told[-1].total, told[-1].seen, told[-1].moved) == (3, 3, 3)


def test_dequeue_takes_the_jobs_with_these_arguments(client: Client, inspector: Inspector) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    encoded = Serializers.default().encode([moment, (1, 2)], {}, job="shop.send", id="5")
    publish(
        client,
        *(message("1", "a"), message("2", "b"), message("3", "a"), message("4", "a", job="shop.print")),
        message("5", body=encoded.body),
    )

    assert inspector.jobs.dequeue("shop.send", ["a"], queue="mail") == 2
    assert inspector.jobs.dequeue("shop.send", [moment, (1, 2)], queue="mail") == 1
    assert ids(inspector, "mail") == ["2", "4"]


def test_dequeue_counts_the_jobs_that_were_still_there(client: Client, inspector: Inspector) -> None:
    class Purging:
        name, media_type, safe = "purging", "application/x-purging", True

        dumps = staticmethod(lambda value: b"x")

        def loads(self, data: bytes, classes: object) -> object:
            with Client(client.settings) as other:
                return ["a"] if Inspector(other).queues.purge("mail") else None

    client.serializers.register(Purging())
    publish(client, message("1", body=b"x", content_type=Purging.media_type))

    assert inspector.jobs.dequeue("shop.send", ["a"], queue="mail") == 0
    client.serializers.unregister("purging")


def test_dequeue_compares_arguments_as_they_are_on_the_wire(client: Client, inspector: Inspector) -> None:
    table: list[tuple[list[object], list[object], int]] = [
        ([1], [1], 1),
        ([1], [True], 0),
        ([True], [1], 0),
        ([[1, {"a": None}]], [[1, {"a": None}]], 1),
        ([1.0], [1], 1),
        (["1"], [1], 0),
        ([1], [1, 2], 0),
        ([], [], 1),
    ]
    for number, (enqueued, asked, taken) in enumerate(table):
        publish(client, message("1", *enqueued, queue=f"q{number}"))

        assert inspector.jobs.dequeue("shop.send", asked, queue=f"q{number}") == taken, (enqueued, asked)


# -- other arguments for a signed job


def test_a_signed_message_is_signed_again_as_it_came_and_a_forged_one_is_not() -> None:
    def signed(serializers: Serializers) -> Message:
        encoded = serializers.encode(["a"], {}, job="a.b", id="7", serializer="msgpack", sign=True)
        return message("7", queue="q", job="a.b", body=encoded.body, content_type=encoded.content_type)

    ours, theirs = (Serializers.default(signing_keys=[letter * 16]) for letter in "kx")
    rewriting = Rewriter(ours, kwargs={"to": "x"})

    with pytest.raises(SignatureInvalid):
        rewriting(signed(theirs))
    rewritten = rewriting(signed(ours))

    assert ours.written_by(rewritten) == "application/msgpack"
    assert ours.decode_for_display(rewritten, verify=True) == {"args": ["a"], "kwargs": {"to": "x"}}


# -- a job whose code is here


@pytest.fixture
def told() -> Iterator[list[tuple[str, object]]]:
    """What the hooks of the job `shop.send`, declared here for the queue `mail`, were called with."""
    calls: list[tuple[str, object]] = []

    @palermo.job(name="shop.send", queue="mail")
    def send(to: str) -> None: ...

    @send.hook
    def before_dequeue(to: str) -> bool:
        calls.append(("before", to))
        return to != "kept"

    @send.hook
    def after_dequeue(to: str) -> None:
        calls.append(("after", to))

    yield calls
    registry.unregister("shop.send")


def test_dequeue_runs_hooks_and_one_may_veto(
    client: Client, inspector: Inspector, told: list[tuple[str, object]]
) -> None:
    publish(client, message("1", "ann"), message("2", "kept"))

    # A job may be named by itself.
    assert inspector.jobs.dequeue(registry.get("shop.send"), ["ann"]) == 1
    assert inspector.jobs.dequeue("shop.send", ["kept"]) == 0

    assert told == [("before", "ann"), ("after", "ann"), ("before", "kept")]
    assert inspector.queues.size("mail") == 1


# -- names

#: Each of these lets somebody say a queue's name.
_DOORS: dict[str, Callable[[Inspector, Client, str], Any]] = {
    "enqueue": lambda inspector, client, queue: client.enqueue("shop.mail", ["forged"], queue=queue),
    "requeue": lambda inspector, client, queue: inspector.failed.requeue("1", queue=queue),
    "purge": lambda inspector, client, queue: inspector.queues.purge(queue),
    "delete": lambda inspector, client, queue: inspector.queues.delete(queue),
    "migrate": lambda inspector, client, queue: inspector.queues.migrate(queue, "quorum"),
    "browse": lambda inspector, client, queue: inspector.jobs.list(queue),
    "size": lambda inspector, client, queue: inspector.queues.size(queue),
    "dequeue": lambda inspector, client, queue: inspector.jobs.dequeue("shop.mail", queue=queue),
    "count": lambda inspector, client, queue: inspector.jobs.count_matching("shop.mail", queue=queue),
    "pause": lambda inspector, client, queue: inspector.queues.pause(queue),
    "resume": lambda inspector, client, queue: inspector.queues.resume(queue),
    "clear_client": lambda inspector, client, queue: inspector.tenants.clear(queue, "acme"),
    "recurring": lambda inspector, client, queue: inspector.recurring.put("forge", "shop.mail", every=1.0, queue=queue),
}


@pytest.mark.parametrize("door", _DOORS)
def test_nothing_is_done_to_a_name_that_no_queue_may_have(inspector: Inspector, client: Client, door: str) -> None:
    kept = (f"={client.settings.exchange}.~journal", "=~journal", "=amq.direct")
    for name in (*kept, f"{client.settings.exchange}.~journal", " a", "amq.a", "~a", "a" * 128, "\ud800"):
        with pytest.raises(QueueNameInvalid, match="reserved for the broker and Palermo" if name in kept else None):
            _DOORS[door](inspector, client, name)

    assert [row["name"] for row in inspector.queues.list()] == ["failed"]


def test_no_job_is_enqueued_into_failed_by_its_name_on_the_broker(client: Client) -> None:
    for name in ("=failed", f"={client.settings.exchange}.failed", "=failed:mail"):
        with pytest.raises(QueueNameInvalid, match="is for failed jobs"):
            client.enqueue("shop.mail", ["forged"], queue=name)
