"""Stories of jobs that fail, are retried, snooze, are discarded and given up."""

from collections.abc import Iterator
from typing import Any

import stories

from tests.testing.stories.telling import Site, add, story


def _failing(name: str, job: Any, *args: Any, advance: tuple[float, ...] = (), **options: Any) -> None:
    def tell(site: Site) -> Iterator[None]:
        site.enqueue(job, *args, **options)
        yield
        for seconds in advance:
            site.advance(seconds)
            yield

    add(name, tell)


for times in range(4):
    _failing(f"a job of three runs fails {times} times", stories.at_once, times)
    _failing(f"a coroutine of two runs fails {times} times", stories.coroutine, times)
for times in (1, 2):
    _failing(f"a job that fails {times} times is retried an hour later", stories.hourly, times, advance=(3601,))
_failing("a job that is retried is not due after half of the wait", stories.hourly, 1, advance=(1800,))
_failing("a list of waits", stories.listed, 2, advance=(601,))
_failing("linear waits", stories.linear, 1, advance=(61,))
_failing("no retries by option", stories.at_once, 1, retries=0)
_failing("more retries by option", stories.at_once, 4, retries=4)
for kind in ("key", "index", "value", "exit"):
    _failing(f"retry_on and discard_on with an error of kind {kind}", stories.choosy, 1, kind)
for times in (1, 2, 3):
    _failing(f"a function decides after {times} failures", stories.decided, times, advance=(60,))
_failing("a function discards", stories.discarded, 1)
_failing("the time for retries is over", stories.in_time, 1)
for what in ("retry", "retry later", "snooze", "discard"):
    _failing(f"the job asks for {what}", stories.asking, what, advance=(601,))
_failing("a retry because of another error", stories.because)
_failing("a failure back end is told", stories.reported)


@story
def a_retry_is_given_up(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.hourly, 1)
    yield
    site.note(site.inspector.give_up(job.id)[0]["state"])
    yield


@story
def a_retry_is_run_now(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.hourly, 1)
    yield
    site.note(site.inspector.retry_now(job.id)[0]["state"])
    yield


@story
def a_retry_is_cancelled(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.hourly, 1)
    yield
    site.note(site.inspector.cancel_scheduled(job.id)[0]["state"])
    yield


@story
def a_failed_job_is_requeued_and_succeeds(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.plain, "run", queue=site.queue)
    failed = site.enqueue(stories.at_once, 3)
    yield
    site.note(f"{site.state(job)}, {site.state(failed)}")
    site.note(site.inspector.requeue(failed.id)[0].job)
    yield


@story
def a_failed_job_is_discarded(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.at_once, 9)
    yield
    site.note(site.inspector.discard(job.id)[0].job)
    yield
