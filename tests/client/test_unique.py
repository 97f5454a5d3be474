"""Jobs that are enqueued once: what an enqueue answers, and which key a job has."""

import asyncio
import json
import threading
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.lifecycle import Fail, fail
from palermo.errors import DuplicateJob, OptionInvalid
from palermo.inspector.inspector import Inspector
from tests.client.conftest import Waiting
from tests.contract.tools import FAILURE, consume, take


@palermo.job(name="shop.sync", unique="until_done")
def sync(shop: str, *, full: bool = False, tags: Any = None) -> None: ...


@palermo.job(name="shop.index", unique="until_start", unique_key=lambda page, text="": f"page {page}")
def index(page: int, text: str = "") -> None: ...


@palermo.job(name="shop.sum")
def total(number: int) -> None: ...


def test_a_second_enqueue_answers_with_the_first_job(client: Client, waiting: Waiting) -> None:
    first = sync.enqueue("a")

    second = sync.enqueue("a")

    assert (bool(first), first.duplicate) == (True, "")
    assert (second.id, second.duplicate, second.enqueued, bool(second)) == (first.id, "waiting", False, False)
    assert [message.id for message in waiting()] == [first.id]
    assert sync.enqueue("b")


def test_the_same_arguments_are_one_key_however_they_are_given(client: Client) -> None:
    assert sync.enqueue("a", tags={"x": 1, "y": 2})
    assert not sync.enqueue(shop="a", full=False, tags={"y": 2, "x": 1})
    assert sync.enqueue("a", full=True, tags={"x": 1, "y": 2})
    assert index.enqueue(1, "old")
    assert not index.enqueue(1, text="new")


def test_other_jobs_have_other_keys(client: Client) -> None:
    assert total.options(unique="until_done", unique_key="k").enqueue(1)
    assert not total.options(unique="until_done", unique_key="k").enqueue(2)
    assert client.enqueue("shop.product", [1], unique="until_done", unique_key="k")
    assert total.enqueue(1)


def test_a_second_enqueue_may_raise(client: Client) -> None:
    first = sync.enqueue("a")

    with pytest.raises(DuplicateJob, match=first.id) as raised:
        sync.options(on_duplicate="raise").enqueue("a")

    assert (raised.value.id, raised.value.state) == (first.id, "waiting")


def test_a_second_enqueue_may_replace_the_arguments(client: Client) -> None:
    first = index.enqueue(1, "old")

    second = index.options(on_duplicate="replace").enqueue(1, "new")

    assert (second.id, second.enqueued, second.duplicate) == (first.id, True, "waiting")
    (key,) = client.run(lambda broker: broker.keys.known())
    assert key.holder is not None
    assert key.holder.content is not None
    assert json.loads(key.holder.content.message.body) == [1, "new"]


def test_an_id_of_the_callers_own_is_refused_twice(client: Client, waiting: Waiting) -> None:
    order = total.options(id="order-7", dedupe=60)
    assert order.enqueue(1).id == "order-7"

    again = order.enqueue(2)

    assert (again.id, again.duplicate) == ("order-7", "waiting")
    assert len(waiting()) == 1
    assert total.options(id="order-8", unique=60).enqueue(1)
    assert not total.options(id="order-8", unique=60).enqueue(1)
    assert total.options(id="order-9").enqueue(1)
    assert total.options(id="order-9").enqueue(1), "without being asked nothing is refused"


def test_of_many_each_is_answered(client: Client, waiting: Waiting) -> None:
    jobs = sync.enqueue_many([("a",), ("b",), ("a",)])
    mixed = client.enqueue_many([(sync.definition, ("a",), {}), (total.definition, (1,), {})])

    assert [job.enqueued for job in jobs] == [True, True, False]
    assert jobs[2].id == jobs[0].id
    assert [job.enqueued for job in mixed] == [False, True]
    assert len(waiting()) == 3


def test_asyncio_programs_are_answered_too(client: Client) -> None:
    async def main() -> list[palermo.Job]:
        return list(await asyncio.gather(*(sync.enqueue_async("a") for _ in range(20))))

    jobs = asyncio.run(main())

    assert sum(job.enqueued for job in jobs) == 1
    assert len({job.id for job in jobs}) == 1


def test_of_many_threads_one_stores_the_job(client: Client, waiting: Waiting) -> None:
    jobs: list[palermo.Job] = []
    threads = [threading.Thread(target=lambda: jobs.append(sync.enqueue("a"))) for _ in range(20)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(job.enqueued for job in jobs) == 1
    assert len(waiting()) == 1


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


def test_a_debounced_job_is_kept_until_its_burst_is_over(client: Client, waiting: Waiting) -> None:
    first = total.options(debounce=600).enqueue(1)
    second = total.options(debounce=600).enqueue(2)

    assert (first.enqueued, second.enqueued, first.id == second.id) == (True, True, False)
    (key,) = client.run(lambda broker: broker.keys.known())
    assert (key.name, key.next and key.next.message.id) == ("debounce:shop.sum", second.id)


def test_a_throttled_job_goes_at_once_and_the_next_waits(client: Client, waiting: Waiting) -> None:
    throttled = total.options(throttle=600, unique_key=lambda number: str(number % 2))
    first = throttled.enqueue(1)
    other = throttled.enqueue(2)
    assert throttled.enqueue(3)

    assert [message.id for message in waiting()] == [first.id, other.id]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique": "until_ever"}, "until_start"),
        ({"unique": 0}, "until_start"),
        ({"unique": True}, "until_start"),
        ({"unique": 60, "on_duplicate": "again"}, "return, raise, replace, rerun"),
        ({"unique": 60, "on_duplicate": "replace"}, "until_done"),
        ({"unique": 60, "dedupe": 5}, "until_done"),
        ({"unique": "until_done", "unique_key": ""}, "function of the arguments"),
        ({"unique": "until_done", "unique_key": lambda number: None}, "must give text"),
        ({"unique_key": "a"}, "without unique="),
        ({"debounce": 5, "unique": "until_done"}, "does not go with unique"),
        ({"debounce": 5, "throttle": 5}, "does not go with throttle"),
        ({"throttle": 5, "delay": 5}, "does not go with delay"),
        ({"debounce": -1}, "no duration"),
    ],
)
def test_options_that_mean_nothing_are_refused(client: Client, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionInvalid, match=text):
        total.options(**options).enqueue(1)


def test_arguments_that_cannot_be_told_apart_need_a_key(client: Client) -> None:
    with pytest.raises(OptionInvalid, match="unique_key="):
        sync.options(serializer="pickle").enqueue("a", tags=object)


def test_a_failed_job_that_is_not_requeued_says_why(client: Client) -> None:
    async def fail_first(broker: Broker) -> None:
        worker = await consume(broker)
        delivery = await worker.admit(await take(worker))
        assert delivery is not None
        await worker.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
        await worker.close()

    inspector = Inspector(client)
    first = sync.enqueue("a")
    client.run(fail_first)
    second = sync.enqueue("a")
    assert second.id != first.id

    with pytest.raises(DuplicateJob, match=r"which another job has, or .* The job stays in `failed`\."):
        inspector.requeue(first.id)

    assert [row["id"] for row in inspector.failed()] == [first.id]
    inspector.purge("jobs")
    assert [taken.id for taken in inspector.requeue(first.id)] == [first.id]
    assert not sync.enqueue("a")
