"""Jobs that are enqueued once: the answers and the keys; and the options that an enqueue takes and refuses."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

import palermo
from palermo.client import announced_jobs
from palermo.client.announced_jobs import AnnouncedJobs
from palermo.client.client import Client
from palermo.core.backoff import backoff, seconds
from palermo.core.unique_keys import lock_of
from palermo.errors import ArgumentsInvalid, DuplicateJob, OptionInvalid, ResultTimeout
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.jobs.definition import define
from palermo.jobs.options import EnqueueOptions
from palermo.settings.settings import Settings
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
        with pytest.raises(OptionInvalid, match=r"by a function.*not imported here.*PALERMO_IMPORTS.*unique_key"):
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
    question = AnnouncedJobs.question
    monkeypatch.setattr(AnnouncedJobs, "question", lambda *given: (asked.append(""), question(*given))[1])
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
    assert not total.options(id="order-8", unique=60).enqueue(1)
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


@palermo.job(name="limited.resize", timeout=30, expires=600)
def resize(path: str) -> None: ...


def test_declared_limits_travel_with_every_job_and_options_override_them(client: Client, waiting: Waiting) -> None:
    before = time.time()

    resize.enqueue("x")
    resize.options(timeout=0.5, expires=5).enqueue("x")
    resize.enqueue_many([("x",)])
    palermo.enqueue("limited.plain", ["x"], timeout=7, expires=5)
    palermo.enqueue("limited.plain", ["x"])

    after = time.time()

    *messages, plain = waiting()
    assert (plain.timeout, plain.expires_at) == (None, None)
    assert [message.timeout for message in messages] == [30.0, 0.5, 30.0, 7.0]
    for message, lasts in zip(messages, (600, 5, 600, 5), strict=True):
        # To the millisecond: how a header has it may round it.
        assert before - 0.001 <= (message.expires_at or 0) - lasts <= after + 0.001
    assert all(message.defect == "" for message in messages)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *((one, "is not a duration") for one in ({"timeout": "5m"}, {"timeout": 0}, {"expires": True})),
        ({"expires": 1e300}, "is not a duration"),
        ({"limit": 0}, "limit=0"),
        ({"limit": True}, "limit=True"),
        ({"rate": "often"}, "rate='often'"),
        ({"limit": 1, "limit_key": ""}, "limit_key=''"),
        ({"limit": 1, "limit_key": "k\ud800"}, "UTF-8"),
        ({"unique": 5, "unique_key": "k\ud800"}, "UTF-8"),
        ({"priority": 10}, "priority=10"),
        ({"rerun_after": 0}, "rerun_after=0"),
    ],
)
def test_an_option_that_means_nothing_is_refused(wrong: dict[str, Any], named: str, client: Client) -> None:
    with pytest.raises(OptionInvalid, match=named):
        client.enqueue("limited.plain", ["x"], **wrong)


def test_an_error_in_a_limit_key_function_names_the_option(client: Client) -> None:
    charge = define(lambda order: None, name="shop.charge", limit=1, limit_key=lambda order: order["account"])

    with pytest.raises(OptionInvalid, match=r"given as limit_key of job 'shop.charge' raised KeyError: 'account'"):
        client.enqueue(charge, [{}])


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "until_done"},
        {"unique": 5.0},
        {"dedupe": 5.0},
        {"limit": 3},
        {"rate": "5/s"},
        {"rerun_after": 5.0},
        {"keep_result": True},
    ],
)
def test_options_that_do_not_go_with_batch_are_refused(options: dict[str, Any], client: Client) -> None:
    with pytest.raises(OptionInvalid, match="batches"):
        define(lambda items: None, name="x", batch=5, **options)
    job = define(lambda items: None, name="x", batch=5)
    with pytest.raises(OptionInvalid, match="batches"):
        client.enqueue(job, (1,), {}, **options)


def test_what_a_batch_goes_with_is_taken(client: Client) -> None:
    job = define(lambda items: None, name="x", batch=5, priority=3, tenant="a", timeout=5.0, retries=2)

    assert client.enqueue(job, (1,), {}, debounce=1.0).enqueued
    assert client.enqueue(job, (2,), {}, unique_key="k", throttle=1.0).enqueued


# -- a duration is a number of seconds or a timedelta, wherever a program gives one


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("name", ["timeout", "expires", "delay", "unique", "throttle", "retry_for"])
def test_an_option_of_a_job_may_be_a_timedelta(name: str) -> None:
    options: Any = {name: MINUTE}

    assert getattr(palermo.job(name="x", **options)(lambda: None).definition, name) == 60.0
    assert palermo.job(name="y", batch=5, batch_wait=MINUTE)(lambda items: None).definition.batch_wait == 60.0


def test_durations_of_an_enqueue_may_be_timedeltas(client: Client) -> None:
    durations = [name for name, hint in EnqueueOptions.__annotations__.items() if "timedelta" in str(hint)]
    for name in durations:
        job = define(lambda: None, name=name)
        given: Any = {name: MINUTE}
        negative: Any = {name: -MINUTE}
        assert client.enqueue(job, **given).enqueued, name
        with pytest.raises(OptionInvalid, match=f"{name}=datetime.timedelta"):
            client.enqueue(job, **negative)

    assert len(durations) == 8


def test_a_message_of_timedeltas_is_one_of_seconds(client: Client, waiting: Waiting) -> None:
    client.enqueue(define(lambda: None, name="x"), timeout=MINUTE, rerun_after=2 * MINUTE, expires=3 * MINUTE)

    (message,) = waiting()

    assert (message.timeout, message.rerun_after) == (60.0, 120.0)
    assert (message.expires_at or 0.0) - (message.queued_at or 0.0) == pytest.approx(180.0, abs=1.0)


@pytest.mark.parametrize(
    ("value", "second"),
    [
        (MINUTE, 60.0),
        (palermo.Fixed(delay=MINUTE), 60.0),
        (palermo.Linear(step=MINUTE, cap=timedelta(seconds=90)), 90.0),
        (palermo.Exponential(base=MINUTE, factor=3, cap=2 * MINUTE), 120.0),
        (lambda attempt, error: attempt * MINUTE, 120.0),
    ],
)
def test_a_backoff_may_be_made_of_timedeltas(value: object, second: float) -> None:
    assert seconds(backoff(value), 2, 0.5) == second


def test_a_job_may_say_by_a_timedelta_when_it_runs_again() -> None:
    assert palermo.Retry(delay=MINUTE).delay == 60.0
    assert palermo.Snooze(MINUTE).delay == 60.0
    with pytest.raises(OptionInvalid, match=r"Snooze got delay=datetime.timedelta\(days=-1\); give seconds"):
        palermo.Snooze(timedelta(days=-1))


def test_a_setting_may_be_a_timedelta() -> None:
    settings = Settings.load(publish_timeout=MINUTE, schedule={"sweep": {"job": "shop.sweep", "every": MINUTE}})

    assert settings.publish_timeout == 60.0
    assert settings.schedule["sweep"]["every"] == 60.0


def test_a_wait_may_be_a_timedelta(client: Client) -> None:
    job = client.enqueue(define(lambda: None, name="x"), keep_result=True)

    with pytest.raises(ResultTimeout, match=r"did not end within 0.001 s"):
        job.result(timeout=timedelta(milliseconds=1))
    assert palermo.inspector().failed.trim(max_age=MINUTE) == 0
