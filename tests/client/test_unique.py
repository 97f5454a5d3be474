"""Jobs that are enqueued once: what an enqueue answers, and which key a job has."""

import asyncio
from typing import Any

import pytest

import palermo
from palermo.client import announced_jobs
from palermo.client.announced_jobs import AnnouncedJobs
from palermo.client.client import Client
from palermo.core.unique_keys import lock_of
from palermo.errors import ArgumentsInvalid, DuplicateJob, OptionInvalid
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from tests.client.conftest import Waiting


@palermo.job(name="shop.sync", unique="until_done")
def sync(shop: str, *, full: bool = False, tags: Any = None) -> None: ...


@palermo.job(name="shop.index", unique="until_start", unique_key=lambda page, text="": f"page {page}")
def index(page: int, text: str = "") -> None: ...


@palermo.job(name="shop.sum")
def total(number: int) -> None: ...


def test_a_second_enqueue_answers_with_the_first_job_or_raises(client: Client, waiting: Waiting) -> None:
    first = sync.enqueue("a")

    second = sync.enqueue("a")

    assert (bool(first), first.conflict) == (True, None)
    assert (second.id, second.enqueued, bool(second)) == (first.id, False, False)
    assert second.conflict == palermo.Conflict("returned", first.id, "waiting")
    assert "state='waiting'" in repr(second)
    assert [message.id for message in waiting()] == [first.id]
    assert sync.enqueue("b")
    with pytest.raises(DuplicateJob, match=first.id) as raised:
        sync.options(on_duplicate="raise").enqueue("a")
    assert (raised.value.id, raised.value.state) == (first.id, "waiting")


def test_the_same_arguments_are_one_key_however_they_are_given(client: Client) -> None:
    assert sync.enqueue("a", tags={"x": 1, "y": 2})
    assert not sync.enqueue(shop="a", full=False, tags={"y": 2, "x": 1})
    assert sync.enqueue("a", full=True, tags={"x": 1, "y": 2})
    assert index.enqueue(1, "old")
    assert not index.enqueue(1, text="new")


def test_equal_sets_and_dicts_are_one_key_whatever_their_order(client: Client) -> None:
    assert [list({0, 8}), list({8, 0})] == [[0, 8], [8, 0]], "equal hashes modulo 8: the first added comes first"
    assert sync.enqueue("a", tags=[{0, 8}, {1: "x", 2: frozenset({0, 8})}])
    assert not sync.enqueue("a", tags=[{8, 0}, {2: frozenset({8, 0}), 1: "x"}])
    assert sync.enqueue("a", tags=[[0, 8], {1: "x", 2: frozenset({0, 8})}])


def announce(client: Client, *jobs: Any) -> None:
    """What a worker of these jobs announces; then the program that enqueues has not got their code."""
    names = [job.definition.name for job in jobs]
    unique = [one for job in jobs if (one := job.definition.as_unique) is not None]
    client.run(lambda broker: broker.keys.announce(names, unique))
    for name in names:
        registry.unregister(name)


def test_a_job_by_name_has_the_same_key_as_one_of_its_code(client: Client, waiting: Waiting) -> None:
    first = sync.enqueue("a")
    announce(client, sync)

    # The client asks the broker for what is announced, here in an event loop.
    asked = asyncio.run(client.enqueue_async("shop.sync", ["a"]))
    again = client.enqueue("shop.sync", ["a"], {"tags": None})
    many = client.enqueue_many([("shop.sync", ["a"], {}), ("shop.sync", [], {"shop": "b"}), ("shop.sync", ["b"], {})])
    later = asyncio.run(client.enqueue_async("shop.sync", ["b"]))

    assert {(job.id, job.conflict) for job in (asked, again)} == {
        (first.id, palermo.Conflict("returned", first.id, "waiting"))
    }
    assert [job.enqueued for job in many] == [False, True, False]
    assert (later.id, later.enqueued) == (many[1].id, False)
    assert [message.id for message in waiting()] == [first.id, many[1].id]


def test_a_job_by_name_whose_key_only_its_code_makes_is_refused(client: Client, waiting: Waiting) -> None:
    announce(client, index)

    for more in ({}, {"id": "mine"}, {"unique": 5.0}):
        with pytest.raises(OptionInvalid, match=r"by a function.*has not imported.*PALERMO_IMPORTS.*unique_key"):
            client.enqueue("shop.index", [1], **more)  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match=r"shop\.index"):
        client.enqueue_many([("shop.index", [1], {})])

    assert client.enqueue("shop.index", [1], unique_key="page 1")
    assert not index.enqueue(1)
    assert len(waiting()) == 1


def test_a_default_value_that_only_the_code_has_is_told_of_in_words(client: Client) -> None:
    @palermo.job(name="shop.crawl", unique="until_done")
    def crawl(page: int, depth: Any = ()) -> None: ...

    announce(client, crawl)

    with pytest.raises(OptionInvalid, match="from a default value in the code"):
        client.enqueue("shop.crawl", [1])
    assert client.enqueue("shop.crawl", [1], id="mine")
    assert not client.enqueue("shop.crawl", [1], id="mine").enqueued


def test_arguments_that_do_not_fit_what_was_announced_are_refused(client: Client) -> None:
    announce(client, sync)

    with pytest.raises(ArgumentsInvalid, match=r"shop\.sync.*\(shop, \*, full=False, tags=None\)"):
        client.enqueue("shop.sync", ["a", "b"])


def test_debounce_and_throttle_hold_by_name_too(client: Client, waiting: Waiting) -> None:
    @palermo.job(name="shop.rank", throttle=60)
    def rank(page: int) -> None: ...

    announce(client, rank)

    client.enqueue("shop.rank", [1])
    client.enqueue("shop.rank", [2])

    assert len(waiting()) == 1


def test_a_recurring_job_by_name_is_unique_as_announced(client: Client) -> None:
    announce(client, sync, total)
    inspector = Inspector(client)

    inspector.recurring.put("nightly", "shop.sync", every=60, args=["a"])
    inspector.recurring.put("sums", "shop.sum", every=60, args=[1])

    entries = {one.name: one.message for one in client.run(lambda broker: broker.recurring())}
    assert lock_of(entries["nightly"]) is not None
    assert lock_of(entries["sums"]) is None


def test_the_broker_is_asked_once_and_again_after_a_while(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refresh = AnnouncedJobs.refresh
    monkeypatch.setattr(AnnouncedJobs, "refresh", lambda *given: (asked.append(""), refresh(*given)))
    registry.unregister("shop.sync")
    for _ in range(3):
        assert client.enqueue("shop.sync", ["a"])
    client.enqueue_many([("shop.plain", [number], {}) for number in range(3)])
    total.enqueue(1)
    assert len(asked) == 1

    monkeypatch.setattr(announced_jobs, "FRESH", 0.0)
    announce(client, sync)
    assert client.enqueue("shop.sync", ["a"])
    assert not client.enqueue("shop.sync", ["a"])


def test_each_job_has_keys_of_its_own(client: Client) -> None:
    assert total.options(unique="until_done", unique_key="k").enqueue(1)
    assert not total.options(unique="until_done", unique_key="k").enqueue(2)
    assert client.enqueue("shop.product", [1], unique="until_done", unique_key="k")
    assert total.enqueue(1)


def test_an_id_of_the_callers_own_is_refused_twice(client: Client, waiting: Waiting) -> None:
    order = total.options(id="order-7", dedupe=60)
    assert order.enqueue(1).id == "order-7"

    again = order.enqueue(2)

    assert again.conflict == palermo.Conflict("returned", "order-7", "waiting")
    assert len(waiting()) == 1
    assert total.options(id="order-8", unique=60).enqueue(1)
    assert total.options(id="order-8", unique=60).enqueue(1).conflict.state == "recent"
    assert total.options(id="order-9").enqueue(1)
    assert total.options(id="order-9").enqueue(1), "without being asked nothing is refused"


def test_a_hook_hears_only_of_what_was_enqueued(client: Client) -> None:
    heard: list[str] = []

    @palermo.job(name="shop.heard", unique="until_done")
    def job(text: str) -> None: ...

    @job.hook
    def after_enqueue(text: str) -> None:
        heard.append(text)

    job.enqueue("a")
    job.enqueue("a")

    assert heard == ["a"]


def test_debounced_and_throttled_jobs_have_keys_of_their_own(client: Client, waiting: Waiting) -> None:
    first = total.options(debounce=600).enqueue(1)
    second = total.options(debounce=600).enqueue(2)
    throttled = total.options(throttle=600, unique_key=lambda number: str(number % 2))
    at_once = [throttled.enqueue(1).id, throttled.enqueue(2).id]
    assert throttled.enqueue(3)

    assert (first.enqueued, second.enqueued, first.id == second.id) == (True, True, False)
    known = {key.name: key for key in client.run(lambda broker: broker.keys.known())}
    debounced = known["debounce:shop.sum"]
    assert debounced.next is not None
    assert debounced.next.message.id == second.id
    assert [message.id for message in waiting()] == at_once


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique": "until_ever"}, "until_start"),
        ({"unique": 0}, "until_start"),
        ({"unique": True}, "until_start"),
        ({"unique": 60, "on_duplicate": "again"}, "'return', 'raise', 'replace', 'rerun'"),
        ({"unique": 60, "on_duplicate": "replace"}, "until_done"),
        ({"unique": 60, "dedupe": 5}, "until_done"),
        ({"unique": "until_done", "unique_key": ""}, "function of the arguments"),
        ({"unique": "until_done", "unique_key": lambda number: None}, "must return text"),
        ({"unique_key": "a"}, "without unique="),
        ({"debounce": 5, "unique": "until_done"}, "cannot be combined with unique"),
        ({"debounce": 5, "throttle": 5}, "cannot be combined with throttle"),
        ({"throttle": 5, "delay": 5}, "cannot be combined with delay"),
        ({"debounce": -1}, "not a duration"),
    ],
)
def test_options_that_mean_nothing_are_refused(client: Client, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionInvalid, match=text):
        total.options(**options).enqueue(1)


def test_arguments_that_cannot_be_told_apart_need_a_key(client: Client) -> None:
    with pytest.raises(OptionInvalid, match="unique_key="):
        sync.options(serializer="pickle").enqueue("a", tags=object)
