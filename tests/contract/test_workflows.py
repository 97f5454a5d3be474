"""Workflows on every broker: the examples of the documents, and what becomes of them when things go wrong.

The jobs run in the test's process, with the code of a real worker; the clock is moved.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import Session

from palermo import Job, JobFilter, Workflow, job_by_id
from palermo.client.client import Client
from palermo.contrib.sqlalchemy import Outbox
from palermo.errors import BodyTooLarge, JobFailed, NotFound, PalermoError, ResultTimeout, UsageError
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.testing import Palermo
from tests.contract import workflow_jobs as jobs

_JOBS = [registry.get(name) for name in registry.names() if name.startswith(jobs.__name__) or name == "fulfilment"]
for _job in _JOBS:
    registry.unregister(_job.name)


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """Declare the jobs for one test; nothing has run yet, and nothing fails."""
    jobs.ran.clear()
    jobs.failing.clear()
    for definition in _JOBS:
        registry.register(definition)
    yield
    for definition in _JOBS:
        registry.unregister(definition.name)


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def site(request: pytest.FixtureRequest) -> Iterator[Palermo]:
    settings: dict[str, Any] = {}
    if request.param != "sqlite":
        settings = {
            "url": request.getfixturevalue(f"{request.param}_url"),
            "exchange": request.getfixturevalue("exchange"),
        }
    with Palermo(raise_failures=False, **settings) as opened:
        yield opened


def run(site: Palermo, workflow: Any, *args: object, failing: Sequence[str] = ()) -> Job[Any]:
    """Enqueue a workflow, and work until nothing is left to do; the jobs that note these texts fail."""
    jobs.failing.update(failing)
    job: Job[Any] = workflow.enqueue(*args)
    site.work_until_idle()
    return job


# The examples of the documents.


@pytest.mark.slow
def test_a_map_is_released_through_a_window(site: Palermo) -> None:
    job = jobs.thumbnails.enqueue()
    site.work()
    site.work("other")  # on RabbitMQ, jobs that are due are put into their queues before each round

    assert len(site.enqueued(jobs.resize)) == 1_000
    assert jobs.thumbnails.enqueue().conflict, "the workflow is unique until it is done"
    for number in range(100):
        jobs.failing[f"{number}.png"] = 1
    site.work_until_idle()
    assert jobs.ran[-1] == "purge_cdn"
    assert len(jobs.ran) == 1_251
    assert job.status() == "done"
    assert not jobs.thumbnails.enqueue().conflict


@pytest.mark.slow
def test_a_graph_with_named_steps_runs_in_its_order(site: Palermo) -> None:
    job = jobs.release.enqueue("v1")
    site.work()
    site.work()
    assert set(jobs.ran) == {"build", "docs"}

    site.work_until_idle()

    assert jobs.ran[-1] == "upload built v1"
    assert site.steps(job) == dict.fromkeys(["build", "test-3.11", "test-3.12", "build_docs", "upload"], "done")


def test_a_chain_passes_results_on_and_rows_say_why_steps_have_not_ended(site: Palermo) -> None:
    job = jobs.checkout.enqueue(17)
    site.work()
    site.work()

    shown = site.inspector().workflows.show(job.id)
    assert [(shown[name]) for name in ("state", "done", "failed", "total")] == ["running", 1, 0, 3]
    charged, packed, receipt = shown["steps"]
    assert (charged["state"], charged["output"], charged["why"]) == ("done", "paid 17", "")
    assert (packed["id"], packed["queue"]) == (f"{job.id}/pack", "jobs")
    assert (packed["state"], packed["why"]) == ("pending", "in queue jobs, which no worker serves")
    assert (receipt["state"], receipt["why"]) == ("waiting", "comes after pack")
    assert receipt["after"] == [{"steps": ["charge", "pack"], "when": "done"}]

    site.work_until_idle()
    assert jobs.ran == ["charge", "pack", "receipt"]
    assert job.result(timeout=10) == "17: paid 17, b'box 17'"
    assert job.status() == "done"
    assert site.inspector().workflows.list() == []
    over = site.inspector().workflows.show(job.id)
    assert [(over[name]) for name in ("state", "done", "failed", "total")] == ["done", 3, 0, 3]
    assert [step["after"] for step in over["steps"]] == [step["after"] for step in shown["steps"]]


def test_a_failed_member_of_a_map_is_counted_and_runs_again_by_itself(site: Palermo) -> None:
    jobs.failing["count us"] = 1
    job = jobs.report.enqueue("may")
    site.work()
    (members, render) = site.inspector().workflows.show(job.id)["steps"]
    assert [members[name] for name in ("kind", "over", "failed", "total")] == ["map", 0, 0, 3]

    assert job.status().text == "0 of 4 steps done"

    site.work_until_idle()

    shown = site.inspector().workflows.show(job.id)
    (members, render) = shown["steps"]
    assert [shown[name] for name in ("done", "failed", "total")] == [2, 1, 4]
    assert [members[name] for name in ("state", "over", "failed", "total")] == ["failed", 3, 1, 3]
    assert (render["state"], render["why"]) == ("skipped", "a step before it did not succeed")

    jobs.failing.clear()
    site.inspector().failed.requeue(JobFilter())
    site.work_until_idle()

    assert job.result(timeout=10) == "may: [2, 2, 4]"
    assert (jobs.ran.count("count us"), jobs.ran.count("count eu")) == (2, 1)


@pytest.mark.parametrize(
    ("fails", "last", "state"),
    [
        ("", ["release_seats"], "done"),
        ("send_teaser", ["release_seats"], "done"),
        ("book_hotel", ["cancel_flight", "release_seats"], "failed"),
        ("book_flight", ["cancel_flight", "release_seats"], "failed"),
        ("no hotel", ["release_seats"], "done"),
    ],
)
def test_steps_run_by_how_those_before_them_ended(site: Palermo, fails: str, last: list[str], state: str) -> None:
    job = run(site, jobs.trip, 3, failing=[fails])

    assert jobs.ran[-len(last) :] == last
    assert job.status() == state


@pytest.mark.slow
def test_a_failed_workflow_goes_on_when_its_jobs_are_requeued(site: Palermo) -> None:
    job = run(site, jobs.checkout, 17, failing=["pack"])
    workflows = site.inspector().workflows
    assert (job.status(), job.status().message) == ("failed", "step pack failed")
    with pytest.raises(JobFailed, match="pack failed"):
        job.result(timeout=10)
    assert [(row["id"], row["state"], row["failed"]) for row in workflows.list()] == [(job.id, "failed", 1)]

    jobs.failing.clear()
    assert [taken.id for taken in workflows.retry(job.id)] == [f"{job.id}/pack"]
    assert job.status() == "working"
    site.work_until_idle()

    assert job.result(timeout=10) == "17: paid 17, b'box 17'"
    assert jobs.ran == ["charge", "pack", "pack", "receipt"]
    with pytest.raises(UsageError, match="is done and has no failed job to requeue"):
        workflows.retry(job.id)


def test_a_retried_workflow_takes_its_key_again(site: Palermo) -> None:
    first = run(site, jobs.nightly, failing=["pack", "receipt"])
    keys, workflows = site.inspector().keys, site.inspector().workflows
    assert (first.status(), keys.list()) == ("failed", [])

    assert not jobs.nightly.enqueue().conflict
    with pytest.raises(UsageError, match=r"another job has the key of its workflow\. 2 such jobs remain in `failed`"):
        workflows.retry(first.id)
    assert first.status() == "failed"
    site.work_until_idle()

    jobs.failing.clear()
    assert len(workflows.retry(first.id)) == 2
    (key,) = keys.list()
    assert (key["id"], key["state"]) == (first.id, "running")
    assert (jobs.nightly.enqueue().id, keys.orphaned()) == (first.id, [])
    site.work_until_idle()
    assert (first.status(), keys.list()) == ("done", [])
    assert not jobs.nightly.enqueue().conflict


@pytest.mark.slow
def test_steps_may_add_steps_and_a_map_may_take_a_result(site: Palermo) -> None:
    job = run(site, jobs.crawl, "example.com")

    assert job.result(timeout=10) == 1 + 100 + 2
    shown = site.inspector().workflows.show(job.id)
    assert [shown[name] for name in ("done", "failed", "total")] == [5, 0, 5]
    names = ["list_pages", "fetch_with_links", "fetch_with_links/each", "total"]
    assert [step["name"] for step in shown["steps"]] == names
    assert jobs.ran.count("deep /long/page/") == 1


def test_a_step_that_added_steps_works_until_they_have_ended(site: Palermo) -> None:
    job = run(site, jobs.nested)
    step, pack, member = (job_by_id(f"{job.id}/{path}") for path in ("approve", "pack", "approve-2:1"))

    for one in (step.status(), member.status()):
        assert (one, one.job.rpartition(".")[2], one.parent) == ("working", "approve", job.id)
        assert one.text == f"a step of workflow {job.id} that waits for the steps that it added: 0 of 2 have ended"
    waits = pack.status()
    assert (waits, waits.job.rpartition(".")[2], waits.parent) == ("pending", "pack", job.id)
    assert waits.reason.startswith(f"a step of workflow {job.id} that waits for other steps.")

    jobs.failing["charge"] = 1
    for one in (step, pack):
        with pytest.raises(ResultTimeout):
            one.wait(timeout=1.5)
    job.signal("approved")
    site.work_until_idle()
    assert (step.wait(10), step.wait(10).message) == ("failed", "step approve/charge failed")
    assert pack.wait(10) == pack.status() == "discarded"
    assert pack.status().reason.startswith(f"a step of workflow {job.id} that is skipped.")

    jobs.failing.clear()
    site.inspector().workflows.retry(job.id)
    assert (step.status(), member.status()) == ("working", "working")
    site.work_until_idle()
    assert (step.status(), member.wait(10), pack.status()) == ("done", "done", "done")


def test_an_event_starts_a_workflow_and_a_signal_lets_it_go_on(site: Palermo) -> None:
    site.publish("order.paid", {"id": 5})
    site.work_until_idle()
    (row,) = site.inspector().workflows.list()
    assert (row["state"], row["waits_for"]) == ("running", ["approved"])
    assert job_by_id(row["id"]).status().text == "0 of 3 steps done, waits for the signal approved"

    workflows = site.inspector().workflows
    assert workflows.signal(row["id"], "approved", {"by": "ann"}) == ""
    assert workflows.signal(row["id"], "approved", {"by": "bob"}).startswith("This value is ignored")
    site.work_until_idle()

    assert jobs.ran == ["ship 5 {'by': 'ann'}"]
    with pytest.raises(NotFound):
        job_by_id(row["id"]).signal("approved")


@pytest.mark.slow
def test_a_signal_that_does_not_come_fails(site: Palermo) -> None:
    site.publish("order.paid", {"id": 5})
    site.work_until_idle()
    site.clock.advance(86_401)
    site.work_until_idle()
    assert jobs.ran == []

    site.clock.advance(3_601)
    site.work_until_idle()

    assert jobs.ran == ["remind"]


@pytest.mark.slow
def test_a_workflow_is_enqueued_with_the_data_of_a_transaction(site: Palermo, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    metadata = MetaData()
    outbox = Outbox(metadata)
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        job = outbox.enqueue(session, jobs.checkout.options(id="order-17"), 17)
        assert site.enqueued() == []
    site.work_until_idle()

    assert job.id == "order-17"
    assert job.result(timeout=10) == "17: paid 17, b'box 17'"


@pytest.mark.parametrize("enqueue", [Workflow.enqueue, lambda flow: asyncio.run(flow.enqueue_async())])
def test_a_workflow_may_be_made_without_a_function(site: Palermo, enqueue: Callable[[Workflow], Job[None]]) -> None:
    flow = Workflow()
    for path in ("a.png", "b.png"):
        flow.step(jobs.resize, path)
    job = enqueue(flow)
    site.work_until_idle()

    assert sorted(jobs.ran) == ["a.png", "b.png"]
    assert site.steps(job) == {"resize": "done", "resize-2": "done"}


# What goes on beside.


@pytest.mark.parametrize(
    ("workflow", "failing", "result"),
    [
        (jobs.values, "", {"text": "hello 3 ['a', 'b']", "made": jobs.Invoice(3, ["a", "b"]), "plain": 1}),
        (jobs.empty, "", []),
        (jobs.tolerant, "count eu", [None, 2]),
        (jobs.brief, "", None),
    ],
    ids=["values of all kinds", "an empty map", "a member that may fail", "nothing"],
)
def test_a_workflow_returns_the_outputs_of_steps(site: Palermo, workflow: Any, failing: str, result: object) -> None:
    assert run(site, workflow, failing=[failing]).result(timeout=10) == result


def test_cancel_stops_what_waits_and_runs_what_cleans_up(site: Palermo) -> None:
    job = jobs.trip.enqueue(3)
    site.work()
    jobs.ran.clear()
    job.cancel()
    site.work_until_idle()

    assert jobs.ran == ["cancel_flight", "release_seats"]
    assert job.status() == "cancelled"
    with pytest.raises(UsageError, match="is cancelled and has no failed job"):
        site.inspector().workflows.retry(job.id)


def test_a_waiting_step_is_cancelled_alone(site: Palermo) -> None:
    job = jobs.trip.enqueue(3)
    site.work()
    job_by_id(f"{job.id}/book_hotel").cancel()
    site.work_until_idle()

    assert site.steps(job)["book_hotel"] == "cancelled"
    assert sorted(jobs.ran) == ["book_flight", "cancel_flight", "release_seats", "send_teaser"]
    assert job.status() == "cancelled"


def test_a_step_is_cancelled_with_the_steps_that_it_added(site: Palermo) -> None:
    job = run(site, jobs.nested)
    site.inspector().jobs.cancel([f"{job.id}/approve", f"{job.id}/approve-2:1"])

    job.signal("approved")
    site.work_until_idle()
    assert jobs.ran == ["charge"], "only the other member of the map goes on"
    steps = site.steps(job)
    assert (steps["approve"], steps["approve/charge"], steps["pack"]) == ("cancelled", "cancelled", "skipped")
    assert (steps["approve-2"], job.status()) == ("failed", "failed")


def test_a_step_of_a_cancelled_workflow_is_not_requeued(site: Palermo) -> None:
    jobs.failing["book_flight"] = 1
    job = jobs.trip.enqueue(3)
    site.work()
    site.work()
    job.cancel()

    with pytest.raises(UsageError, match="its workflow is cancelled"):
        site.inspector().failed.requeue(f"{job.id}/book_flight")
    site.work_until_idle()
    assert jobs.ran.count("book_flight") == 1


def test_a_failed_workflow_is_replaced_by_another_with_its_id(site: Palermo) -> None:
    for order in (17, 18):
        again = run(site, jobs.checkout.options(id="order-17"), order, failing=["pack"])
        assert again.status() == "failed"
    jobs.failing.clear()
    site.inspector().workflows.retry(again.id)
    jobs.checkout.options(id="order-17").enqueue(19)
    site.work_until_idle()

    assert again.result(timeout=10) == "18: paid 18, b'box 18'"
    assert jobs.ran == ["charge", "pack", "charge", "pack", "pack", "receipt"], "a third one adds nothing while it runs"
    assert site.inspector().workflows.list() == []


def test_a_step_never_passes_on_what_an_earlier_run_returned(site: Palermo) -> None:
    job = run(site, jobs.tolerant_report, failing=["charge"])
    assert site.steps(job) == {"charge": "failed", "count_region": "done", "render": "done"}

    jobs.failing.clear()
    jobs.failing["count eu"] = 1
    site.inspector().workflows.retry(job.id)
    site.work_until_idle()
    assert job.result(timeout=10) == "May: [None]"


def test_a_retry_goes_on_after_the_deadline(site: Palermo) -> None:
    job = run(site, jobs.brief, failing=["charge"])
    site.clock.advance(61)
    site.work_until_idle()
    jobs.failing.clear()

    assert len(site.inspector().workflows.retry(job.id)) == 1
    site.work_until_idle()
    assert job.wait(10) == "done"
    assert jobs.ran[-1] == "pack"


def test_a_workflow_out_of_time_fails(site: Palermo) -> None:
    job = jobs.hurried.enqueue()
    with pytest.raises(NotFound, match="is not waiting for signals"):
        job.signal("never")
    site.work_until_idle()
    with pytest.raises(BodyTooLarge, match="65,536"):
        job.signal("never", "x" * 65_535)
    assert job.status() == "working"

    site.clock.advance(61)
    site.work_until_idle()

    assert job.status() == "failed"
    assert jobs.ran == []
    assert site.inspector().workflows.list() == []
    with pytest.raises(UsageError, match="missed a deadline"):
        site.inspector().workflows.retry(job.id)
    site.clock.advance(11)
    assert job_by_id(job.id).status() == "failed"


def test_a_retry_leaves_out_discarded_jobs(site: Palermo) -> None:
    job = run(site, jobs.report, "May", failing=["count eu", "count us"])
    eu, us = (f"{job.id}/count_region:{number}" for number in range(2))
    site.inspector().failed.discard(eu)

    assert [taken.id for taken in site.inspector().workflows.retry(job.id)] == [us]
    site.work_until_idle()
    site.inspector().failed.discard(us)
    with pytest.raises(UsageError, match=r"no failed job left to requeue\. The job was discarded"):
        site.inspector().workflows.retry(job.id)


def test_a_purged_step_is_cancelled(site: Palermo) -> None:
    job = jobs.checkout.enqueue(17)
    site.work()
    site.inspector().queues.purge("jobs")
    site.work_until_idle()

    assert job.status() == "cancelled"
    assert site.steps(job) == {"charge": "cancelled", "pack": "skipped", "receipt": "skipped"}


@pytest.mark.slow
def test_a_step_that_is_done_is_not_requeued_by_a_stale_copy(site: Palermo) -> None:
    job = run(site, jobs.checkout, 17, failing=["pack"])
    jobs.failing.clear()
    (copy,) = site.client.run(lambda broker: broker.browse("failed")).messages
    site.inspector().failed.requeue(copy.id)
    site.work_until_idle()
    assert job.status() == "done"

    again = run(site, jobs.checkout, 18, failing=["receipt"])
    jobs.failing.clear()
    site.inspector().workflows.retry(again.id)
    with pytest.raises(NotFound):
        site.inspector().failed.requeue(f"{again.id}/receipt")
    site.work_until_idle()
    assert again.status() == "done"


@pytest.mark.parametrize("site", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("ran", [False, True])
def test_a_step_that_another_operator_requeues_is_reported_as_gone(site: Palermo, ran: bool) -> None:
    """RabbitMQ makes the second operator wait for the first."""
    job = run(site, jobs.checkout, 17, failing=["pack"])
    jobs.failing.clear()
    pack, others = f"{job.id}/pack", list[str]()

    def other_first() -> bool:
        if not others:
            others.extend(taken.id for taken in site.inspector().failed.requeue(pack))
            if ran:
                site.work_until_idle()
        return False

    errors: list[PalermoError] = []
    with Client(site.client.settings) as client:
        taken = Inspector(client).failed.requeue(pack, stop=other_first, on_error=errors.append)

    assert (taken, others) == ([], [pack])
    assert [type(error) for error in errors] == [NotFound]


def test_a_failed_workflow_is_forgotten_once_it_is_cancelled(site: Palermo) -> None:
    job = run(site, jobs.checkout, 17, failing=["pack"])
    job.cancel()

    assert site.inspector().workflows.list() == []
    jobs.failing.clear()
    site.inspector().failed.requeue(f"{job.id}/pack")
    site.work_until_idle()
    assert jobs.ran == ["charge", "pack", "pack"], "the step runs as a plain job"
    site.clock.advance(11)
    assert job_by_id(job.id).status() == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maps", "kilobytes", "refused"),
    [
        ([160], 64, ""),
        ([170], 64, "the output of 'make' has 10,88"),
        ([90, 90], 64, "the arguments of job .*/measure and the outputs passed to it have 11,52"),
        ([1], 66, "make:0: the result has "),
    ],
)
def test_a_step_takes_outputs_of_at_most_10_mib(site: Palermo, maps: list[int], kilobytes: int, refused: str) -> None:
    job = run(site, jobs.large, maps, kilobytes)

    assert job.status() == ("failed" if refused else "done")
    if not refused:
        assert job.result(timeout=10) == 1_000 * kilobytes * sum(maps)
        return
    (failed,) = site.inspector().failed.list().rows
    assert failed["error"]["class"] == "palermo.errors.ResultRefused"
    assert re.search(refused, failed["error"]["message"])
    assert [row["kind"] for row in site.inspector().history.timeline(failed["id"])][-1] == "failed"


# On RabbitMQ, jobs of tenants wait for a leader, and no worker leads here.
@pytest.mark.parametrize("site", ["sqlite", "redis"], indirect=True)
def test_steps_belong_to_the_tenant_of_their_workflow(site: Palermo) -> None:
    jobs.inheriting.enqueue()
    site.work()

    found = {one.job.rpartition(".")[2]: (one.tenant, one.priority) for one in site.enqueued()}
    assert found == {"purge_cdn": ("ada", 3), "resize": ("bob", 3)}
