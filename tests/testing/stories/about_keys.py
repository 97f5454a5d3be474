"""Stories of unique jobs, limits, rates, delays and expiry."""

from collections.abc import Iterator

import stories

from tests.testing.stories.telling import Site, add, story


@story
def a_unique_job_is_enqueued_twice(site: Site) -> Iterator[None]:
    first = site.enqueue(stories.unique)
    second = site.enqueue(stories.unique)
    site.note(f"same {first.id == second.id}")
    yield
    site.enqueue(stories.unique)
    yield


@story
def unique_jobs_with_other_arguments(site: Site) -> Iterator[None]:
    for text in ("a", "b", "a"):
        site.enqueue(stories.unique, text)
    yield


def _duplicate(on_duplicate: str) -> None:
    def tell(site: Site) -> Iterator[None]:
        options = {"unique_key": f"key of {site.name}", "on_duplicate": on_duplicate}
        site.enqueue(stories.unique, "first", **options)
        site.try_enqueue(stories.unique, "second", **options)
        yield
        site.try_enqueue(stories.unique, "third", **options)
        yield

    add(f"a duplicate with on_duplicate {on_duplicate}", tell)


for on_duplicate in ("return", "raise", "replace", "rerun"):
    _duplicate(on_duplicate)


@story
def unique_until_start(site: Site) -> Iterator[None]:
    site.enqueue(stories.until_start)
    site.enqueue(stories.until_start)
    yield


@story
def a_unique_job_keeps_its_key_for_its_retry(site: Site) -> Iterator[None]:
    site.enqueue(stories.unique_failing)
    yield
    site.enqueue(stories.unique_failing)
    site.advance(3601)
    yield
    site.enqueue(stories.unique_failing)
    yield


@story
def a_running_unique_job_is_run_once_more(site: Site) -> Iterator[None]:
    site.enqueue(stories.unique_enqueuing_itself, False)
    yield


@story
def a_unique_job_is_cancelled_and_its_key_is_free(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.unique)
    site.note(site.inspector.cancel(job.id)[0]["state"])
    site.enqueue(stories.unique)
    yield


@story
def a_webhook_is_delivered_twice(site: Site) -> Iterator[None]:
    for _ in range(2):
        site.enqueue(stories.plain, id=f"hook of {site.name}", dedupe=600)
    yield
    site.enqueue(stories.plain, id=f"hook of {site.name}", dedupe=600)
    yield


@story
def a_throttle_lets_the_first_run_at_once(site: Site) -> Iterator[None]:
    for text in ("first", "second", "third"):
        site.enqueue(stories.plain, text, throttle=3600, unique_key=site.name)
    yield


@story
def a_debounce_keeps_all_back(site: Site) -> Iterator[None]:
    for text in ("first", "second", "third"):
        site.enqueue(stories.plain, text, debounce=3600, unique_key=site.name)
    site.note(f"{len([key for key in site.inspector.unique_keys() if site.name in str(key)])} key")
    yield


@story
def a_limit_of_one(site: Site) -> Iterator[None]:
    for _ in range(3):
        site.enqueue(stories.limited)
    yield


@story
def a_rate_puts_the_second_job_aside(site: Site) -> Iterator[None]:
    for text in ("first", "second"):
        site.enqueue(stories.rated, text)
    yield  # a real worker in a burst waits for the second one
    site.advance(1)
    yield


@story
def rates_of_two_keys(site: Site) -> Iterator[None]:
    site.enqueue(stories.rated, "a", limit_key=f"{site.name} a")
    site.enqueue(stories.rated, "b", limit_key=f"{site.name} b")
    yield


@story
def a_delayed_job_runs_when_it_is_due(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.delayed)
    site.note(site.state(job))
    yield
    site.advance(3601)
    yield


@story
def a_job_with_a_delay_by_option(site: Site) -> Iterator[None]:
    site.enqueue(stories.plain, delay=60)
    site.enqueue(stories.plain, delay=7200)
    yield
    site.advance(61)
    yield


@story
def an_instant_that_has_passed_is_now(site: Site) -> Iterator[None]:
    site.enqueue(stories.plain, run_at=1_000_000_000.0)
    yield


@story
def a_scheduled_job_is_cancelled(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.delayed)
    site.note(site.inspector.cancel_scheduled(job.id)[0]["state"])
    site.advance(3601)
    yield


@story
def a_scheduled_job_is_run_now(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.delayed)
    site.note(site.inspector.run_now(job.id)[0]["state"])
    yield


@story
def a_job_expires_before_it_is_run(site: Site) -> Iterator[None]:
    site.enqueue(stories.expiring)
    site.enqueue(stories.plain, expires=3600)
    yield


@story
def an_expired_job_is_requeued(site: Site) -> Iterator[None]:
    job = site.enqueue(stories.expiring)
    yield
    site.inspector.requeue(job.id)
    yield
