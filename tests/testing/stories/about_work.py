"""Stories of arguments, results, queues, tenants, priorities, batches, events and cancelled jobs."""

from collections.abc import Iterator
from typing import Any

import stories

from tests.testing.stories.telling import Site, add, story


def _simple(name: str, job: Any, *args: Any, **options: Any) -> None:
    def tell(site: Site) -> Iterator[None]:
        site.try_enqueue(job, *args, **options)
        yield

    add(name, tell)


for what in ("none", "number", "nested", "text", "large", "object"):
    _simple(f"a job returns {what}", stories.returning, what)
_simple("a coroutine returns", stories.awaited)
_simple("a result that is not kept", stories.returning, "number", keep_result=False)
_simple("a result that is kept by option", stories.at_once, 0, keep_result=True)
_simple("a result of a retried job", stories.at_once, 2, keep_result=True)
_simple("the result of a job that fails", stories.failing_result)
_simple("dataclasses come and go", stories.returning_an_order, stories.Order(1, stories.Colour.RED))
_simple("positional and named arguments", stories.arguments, 1, 2, 3, 4)
_simple("too few arguments", stories.arguments)
_simple("msgpack", stories.plain, "ä", serializer="msgpack")
_simple("a serializer that the worker does not accept", stories.plain, serializer="pickle")
_simple("compressed arguments", stories.plain, "x" * 2000, compression="gzip")
_simple("a job that no worker knows", "stories.unknown", "a", queue="jobs")
_simple("the current job", stories.current, tenant="acme", queue="of current")
_simple("a job enqueues another", stories.nesting, 3)
_simple("a job enqueues many", stories.nesting_many, 4)
_simple("a job runs into its timeout", stories.endless)
_simple("a timeout by option", stories.endless, timeout=0.1)
_simple("a job logs and reports", stories.logging)
_simple("a worker hook and a report", stories.reported)


@story
def named_arguments_by_name(site: Site) -> Iterator[None]:
    site.jobs.append(site.client.enqueue(stories.arguments.definition, (site.name, 1), {"c": 5, "d": 6}))
    yield
    site.jobs.clear()


@story
def one_argument_from_elsewhere(site: Site) -> Iterator[None]:
    site.client.enqueue(stories.one.definition, ({"story": site.name, "list": [1]},), id=f"{site.name}.1")
    yield


@story
def arguments_that_do_not_fit_come_from_a_stranger(site: Site) -> Iterator[None]:
    definition = stories.arguments.definition
    stories.palermo.jobs.registry.unregister(definition.name)
    try:
        site.enqueue(definition.name, "a", "b", queue="jobs")
        site.jobs.append(site.client.enqueue(definition.name, (site.name,), id=f"{site.name}.2"))
    finally:
        stories.palermo.jobs.registry.register(definition)
    yield


@story
def many_at_once(site: Site) -> Iterator[None]:
    calls = [(stories.plain.definition, (site.name, f"job {number}"), {}) for number in range(5)]
    site.jobs += site.client.enqueue_many(calls)
    yield
    site.jobs.clear()


@story
def the_order_of_one_queue(site: Site) -> Iterator[None]:
    for number in range(5):
        site.enqueue(stories.plain, f"job {number}", queue=site.queue)
    yield


@story
def priorities(site: Site) -> Iterator[None]:
    for priority in (1, 9, 5, 0, 9):
        site.enqueue(stories.important, f"priority {priority}", priority=priority)
    yield


@story
def tenants_take_turns(site: Site) -> Iterator[None]:
    for tenant, count in (("a", 3), ("b", 2), ("c", 1)):
        for number in range(count):
            site.enqueue(stories.of_tenant, tenant, f"job {number}", queue=site.queue)
    yield


@story
def a_tenant_with_a_larger_share(site: Site) -> Iterator[None]:
    for number in range(4):
        site.enqueue(stories.of_tenant, "a", f"job {number}", queue=site.queue)
        site.enqueue(stories.of_tenant, "b", f"job {number}", queue=site.queue, share=2.0)
    yield


@story
def a_tenant_is_cleared(site: Site) -> Iterator[None]:
    for tenant in ("a", "b"):
        site.enqueue(stories.of_tenant, tenant, "job", queue=site.queue)
    site.note(f"{site.inspector.clear_client(site.queue, 'a')} cleared")
    yield


@story
def a_batch_takes_three(site: Site) -> Iterator[None]:
    for number in range(7):
        site.client.enqueue(stories.batched.definition, ((site.name, f"{number}"),), id=f"{site.name}.{number}")
    yield


@story
def a_batch_fails_together(site: Site) -> Iterator[None]:
    for number in range(3):
        job = (stories.failing_batch.definition, ((site.name, f"{number}"),))
        site.jobs.append(site.client.enqueue(*job, id=f"{site.name}.{number}"))
    yield


@story
def an_event_comes_to_each_group(site: Site) -> Iterator[None]:
    site.client.publish("story.one.told", {"story": site.name})
    yield


@story
def an_event_comes_to_one_group(site: Site) -> Iterator[None]:
    site.client.publish("story.ended", {"story": site.name})
    yield


@story
def an_event_comes_to_nobody(site: Site) -> Iterator[None]:
    site.client.publish("other.topic", {"story": site.name})
    yield


@story
def a_group_fails_once(site: Site) -> Iterator[None]:
    site.client.publish("story.two.told", {"story": site.name, "fail": 1})
    yield


@story
def a_group_fails_for_good(site: Site) -> Iterator[None]:
    site.client.publish("story.three.told", {"story": site.name, "fail": 2}, id=f"{site.name}.1")
    yield


@story
def a_waiting_job_is_cancelled(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.plain, keep_result=True)
    site.enqueue(stories.plain, "another")
    site.note(site.inspector.cancel(job.id)[0]["state"])
    site.note(site.state(job))
    yield


@story
def a_paused_queue_waits(site: Site) -> Iterator[None]:
    site.enqueue(stories.plain, queue=site.queue)
    site.inspector.pause(site.queue)
    yield
    site.note(f"{site.inspector.size(site.queue)} waits")
    site.inspector.resume(site.queue)
    yield


@story
def a_queue_is_purged(site: Site) -> Iterator[None]:
    for _ in range(3):
        site.enqueue(stories.plain, queue=site.queue)
    site.note(f"{site.inspector.purge(site.queue)} purged")
    yield


@story
def jobs_are_dequeued_by_their_arguments(site: Site) -> Iterator[None]:
    for text in ("a", "b", "a"):
        site.enqueue(stories.plain, text)
    site.note(f"{site.inspector.dequeue('stories.plain', (site.name, 'a'))} dequeued")
    yield
