"""Twenty tasks of an operator in a browser, each by the mouse and by the keyboard alone, with a bound on the clicks.

docs/guides/operator-tasks.md has the same list, beside what other pages need for each task. All tasks of one hand are
done at one broker, which many jobs have gone through; each task has jobs of its own.
"""

import contextlib
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from palermo.client.actor import Actor
from palermo.contract.broker import Broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.failure import Failure
from palermo.core.lifecycle import Fail, fail
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.history.filters import HistoryFilter
from palermo.inspector.failed_filter import FailedFilter
from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests.helpers import eventually
from tests.history.written import ended, failed, write
from tests.inspector.jobs import failure, message, publish
from tests.rabbitmq_tidy import delete_all
from tests.webui.browser.conftest import Open, path_of
from tests.webui.browser.operator import Operator
from tests.webui.conftest import BROKER_PATIENCE
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web, answer_at_the_end

#: Failed jobs: timeouts of the bank on two hosts, and cards that were declined.
TIMEOUTS = {"web-1": 1_200, "web-2": 600}
DECLINED = 200

#: Minutes since the last deploys. Letters fail since the second.
DEPLOYS = {"2.13.0": 50, "2.14.0": 20}

CHARGE, LETTER = "store.bank.Charge", "store.mail.Letter"

#: The day after the next, at eight: whatever the hour, all else that is scheduled is due before.
TOMORROW = (time.time() // 86_400 + 2) * 86_400 + 8 * 3_600


@pytest.fixture(scope="module", params=["mouse", "keyboard"])
def hand(request: pytest.FixtureRequest) -> str:
    """What the tasks are done with."""
    return str(request.param)


@pytest.fixture(scope="module")
def web(hand: str, rabbitmq_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The pages of a broker that many jobs have gone through, beside a worker."""
    folder = tmp_path_factory.mktemp(hand)
    settings = Settings(
        url=rabbitmq_url, exchange=f"test-{secrets.token_hex(6)}", journal="all", publish_timeout=BROKER_PATIENCE
    )
    shutil.copy(Path(__file__).with_name("shop.py"), folder)
    with contextlib.ExitStack() as stack, (folder / "worker.log").open("ab") as log:
        # Playwright has an event loop in this thread, so that another has to tidy up.
        thread = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(lambda: thread.submit(delete_all, settings.url, settings.exchange).result())
        web = stack.enter_context(Web(settings))
        with contextlib.chdir(folder):
            stack.enter_context(start_worker(["shop"], settings=settings, log=log, queues=["slow"], concurrency=2))
        fill(web)
        yield web


@pytest.fixture
def operator(open_page: Open, hand: Any, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """Somebody who has just opened the pages."""
    answer_at_the_end(monkeypatch)
    return Operator(open_page("/"), hand)


def fill(web: Web) -> None:
    """All that the tasks are about."""
    now = time.time()
    write(web.client, *records(now))
    charges = [message(f"charge-{nth}", {"order": nth}, queue="bank", job=CHARGE) for nth in range(5_000, 7_000)]
    hosts = [host for host, count in TIMEOUTS.items() for _ in range(count)]
    timeouts = [(failure("requests.Timeout", "no answer", at=int(now) - 600), host) for host in hosts]
    declined = [(failure("store.CardDeclined", "no funds", at=int(now) - 300), "web-1")] * DECLINED
    one = [
        (message("failed-1", {"order": 1058}, queue="bank", job=CHARGE), (failure("store.Refused"), "web-3")),
        (message("typo", {"to": "anna@example,com"}, queue="letters", job=LETTER), (failure("ValueError"), "web-3")),
        (message("read", {"order": 2077}, queue="letters", job=LETTER), (failure("KeyError", "'street'"), "web-3")),
        *(
            (message(f"ping-{nth}", nth, queue="spam", job="store.spam.Ping"), (failure(), "web-3"))
            for nth in range(30)
        ),
    ]
    fail_all(web, [*zip(charges, [*timeouts, *declined], strict=True), *one])
    billing = [message(f"billing-{nth}", {"order": nth}, queue="billing", job=CHARGE) for nth in range(1_050, 1_070)]
    publish(web.client, *billing)
    web.inspector.on_behalf_of(Actor("dana", "web")).pause("billing", reason="the bank moves until 18:00")
    web.client.enqueue("store.images.Resize", ["cat.png"], queue="images")
    for tenant, count in (("acme", 30), ("globex", 2)):
        web.client.enqueue_many([("store.api.Call", (nth,), {}) for nth in range(count)], tenant=tenant, queue="api")
    schedule(
        web.client,
        due("scheduled-1", 7_200, {"order": 1058}, queue="bank", job=CHARGE),
        retrying("retrying-1", 7_200, {"order": 1058}, queue="bank", job=CHARGE),
        due("birthday", 3_600, {"to": "eve@example.com"}, queue="letters", job=LETTER),
        *(at(f"tomorrow-{nth}", TOMORROW + 60 * nth) for nth in range(30)),
        at("after-tomorrow", TOMORROW + 86_400),
        *(retrying(f"partner-{nth}", 3_600, nth, queue="partner", job="store.partner.Push") for nth in range(12)),
    )
    web.inspector.put_recurring("nightly", "store.Nightly", cron="0 3 * * *", queue="reports", args=["yesterday"])
    eventually(lambda: web.http.get("/api/history/letter-1").status_code == 200)


def at(id: str, instant: float) -> Message:
    """A newsletter that is due at this instant."""
    return replace(message(id, id, queue="letters", job="store.News"), run_at=instant)


def records(now: float) -> Iterator[list[dict[str, Any]]]:
    """The journal of the last hour: work, deploys and jobs that are over."""
    write_up = [{"kind": "worker_up", "at": now - 60 * ago, "release": name} for name, ago in DEPLOYS.items()]
    yield write_up
    for minute in range(55, 0, -1):
        bad = minute < DEPLOYS["2.14.0"]
        outcome = {"succeeded": 5, "failed": 15} if bad else {"succeeded": 20}
        letters = {"kind": "counts", "at": now - 60 * minute, "queue": "mail", "job": LETTER, "enqueued": 20, **outcome}
        reports = {"kind": "counts", "at": now - 60 * minute, "queue": "reports", "job": "store.Yearly", "succeeded": 1}
        yield [letters | {"run": {"0.1": 20}}, reports | {"run": {"90": 1}}]
    yield [ended("done-1", at=now - 900, queue="bank", job=CHARGE, body='[{"order": 1058}]')]
    yield [ended("invoice", at=now - 800, queue="letters", job=LETTER, body='["invoice 77"]')]
    yield [failed("letter-1", at=now - 60, queue="mail", job=LETTER)]


def fail_all(web: Web, jobs: Sequence[tuple[Message, tuple[Failure, str]]]) -> None:
    """Publish the jobs, take them as workers on these hosts do, and let each fail."""
    info = WorkerInfo(id="pid:1@test", host="test", pid=1, queues=(), slots=1, state="working", started_at=0)

    async def work(broker: Broker) -> None:
        await broker.publish_many([job for job, _ in jobs])
        reasons = {job.id: reason for job, reason in jobs}
        for queue in dict.fromkeys(job.queue for job, _ in jobs):
            consumer = await broker.consume(QueueSelection.parse(queue), slots=1, tag=info.id, report=lambda: info)
            for _ in range(sum(job.queue == queue for job, _ in jobs)):
                delivery = await consumer.receive(1)
                reason, host = reasons[delivery.message.id]
                await consumer.settle(delivery, Fail(fail(delivery.message, reason, worker=f"pid:1@{host}/worker-1")))
            await consumer.close()

    web.client.run(work)


def told(page: Page, text: str) -> None:
    """The page says that it has done it."""
    expect(page.locator(".flash").filter(has_text=text)).to_be_visible()


def spent(operator: Operator, *, clicks: int, keys: int) -> None:
    """It took no more than this; the keyboard counts the keys that lead to a control, too."""
    assert operator.clicks <= clicks
    assert operator.keys <= keys


def test_the_charge_for_an_order_is_found_whatever_its_state(operator: Operator) -> None:
    page = operator.page
    operator.search("1058 job:Charge")

    for state in ("Failed", "Retrying", "Scheduled", "Waiting", "Finished"):
        found = page.get_by_role("region", name=f"{state} jobs")
        expect(found.locator("tbody tr")).to_have_count(1)
        expect(found).to_contain_text("1058")
    spent(operator, clicks=1, keys=2)


def test_the_deploy_since_which_letters_fail_is_named(operator: Operator) -> None:
    page = operator.page
    operator.open("Statistics")
    operator.use(page.get_by_role("region", name="Table by queue").get_by_role("link", name="mail", exact=True))
    page.wait_for_url("**/statistics?*queue=mail")
    deploys = page.locator(".deploys")
    expect(deploys).to_contain_text(re.compile(r"2\.14\.0 2\d min ago, 2\.13\.0 5\d min ago"))
    operator.use(page.locator("summary", has_text="Numbers over time"))

    rows = page.locator("#cells tbody tr").filter(has=page.locator('td[data-label="failed"].bad'))
    expect(rows.first).to_be_visible()
    began = min(rows.locator("time").evaluate_all("times => times.map(time => Date.parse(time.dateTime) / 1000)"))
    assert 18 * 60 < time.time() - began < 32 * 60  # not since the deploy before
    spent(operator, clicks=3, keys=30)


def test_the_timeouts_of_one_host_are_requeued_and_not_the_others(operator: Operator, web: Web) -> None:
    page, many = operator.page, TIMEOUTS["web-1"]
    operator.search("error:Timeout worker:*@web-1")
    operator.use(page.get_by_role("link", name="Show in Failures"))
    operator.use(page.get_by_role("link", name=f"Requeue all {many:,}"))
    dialog = page.get_by_role("dialog", name=f"Requeue {many:,} jobs?")
    operator.write(dialog.get_by_label("Type their number"), str(many))
    operator.use(dialog.get_by_role("button", name=f"Requeue {many:,} jobs"))

    told(page, f"Requeued {many:,} jobs.")
    assert eventually(lambda: web.inspector.size("bank") == many)
    assert web.inspector.count_failed(FailedFilter(error="Timeout", worker="*@web-2/*")) == TIMEOUTS["web-2"]
    assert web.inspector.count_failed(FailedFilter(error="CardDeclined", worker="*@web-1/*")) == DECLINED
    spent(operator, clicks=4, keys=25)


def test_who_paused_billing_and_why_is_read(operator: Operator) -> None:
    page = operator.page
    operator.use(page.get_by_role("region", name="Table of queues").get_by_role("link", name="billing"))

    expect(page.locator(".note").filter(has_text="paused")).to_contain_text(
        re.compile(r"by dana: the bank moves until 18:00")
    )
    spent(operator, clicks=1, keys=8)


def test_the_jobs_of_tomorrow_are_moved_by_an_hour(operator: Operator, web: Web) -> None:
    page, day = operator.page, datetime.fromtimestamp(TOMORROW, UTC).strftime("%Y-%m-%d")
    operator.open("Scheduled")
    filters = page.get_by_role("search", name="This list")
    operator.write(filters.get_by_label("Due from"), f"{day}T00:00Z")
    operator.write(filters.get_by_label("until"), f"{day}T23:59Z", send=True)
    page.wait_for_url("**/scheduled?*due_from=*")
    operator.use(page.get_by_role("link", name="Move all"))
    operator.write(page.get_by_role("dialog", name="Move 30 scheduled jobs?").get_by_label("New time"), "+1h")
    operator.use(page.get_by_role("dialog").get_by_role("button", name="Move 30 jobs"))

    told(page, "Moved 30 jobs.")
    moved = [datetime.fromisoformat(row["run_at"]).timestamp() for row in web.inspector.scheduled(job="store.News")]
    assert moved == [*(TOMORROW + 3_600 + 60 * nth for nth in range(30)), TOMORROW + 86_400]
    spent(operator, clicks=5, keys=30)


def test_whether_the_broker_is_at_fault_or_we_are_is_told(operator: Operator) -> None:
    page = operator.page
    operator.open("Problems")

    problems = page.get_by_role("region", name="What is wrong now")
    expect(problems).to_contain_text("billing")
    expect(page.locator("summary", has_text="checks of the broker found nothing wrong")).to_be_visible()
    spent(operator, clicks=1, keys=2)


def test_the_most_frequent_error_is_seen_with_its_beginning(operator: Operator) -> None:
    page = operator.page
    operator.open("Failures")
    operator.use(page.get_by_role("link", name="Groups"))

    row = page.get_by_role("region", name="Groups of failed jobs").get_by_role("row").filter(has_text="CardDeclined")
    expect(row).to_contain_text(f"{DECLINED}")
    expect(row.locator('[data-label="first"]')).to_contain_text("min ago")
    spent(operator, clicks=2, keys=25)


def test_the_reason_of_a_failure_is_read_with_its_arguments(operator: Operator) -> None:
    page = operator.page
    operator.search("2077")
    operator.use(page.get_by_role("region", name="Failed jobs").get_by_role("link", name="read"))

    expect(page.locator(".error-line")).to_have_text("KeyError: 'street'")
    expect(page.locator("#args")).to_contain_text("2077")
    expect(page.locator("#trace-view")).to_contain_text("shop.py")
    spent(operator, clicks=2, keys=5)


def test_a_failed_job_is_mended_and_requeued(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.search("example,com")
    operator.use(page.get_by_role("region", name="Failed jobs").get_by_role("link", name="typo"))
    operator.use(page.get_by_role("link", name="Edit and requeue"))
    operator.write(page.get_by_label("Positional arguments"), '[{"to": "anna@example.com"}]')
    operator.use(page.get_by_role("button", name="Requeue"))

    told(page, "Requeued")
    edited = [[{"to": "anna@example.com"}]]
    assert eventually(lambda: [row["args"] for row in web.inspector.jobs("letters") if row["id"] == "typo"] == edited)
    spent(operator, clicks=5, keys=32)


def test_the_failures_of_one_job_class_are_discarded(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.search("job:spam.Ping state:failed")
    operator.use(page.get_by_role("link", name="Show in Failures"))
    operator.use(page.get_by_role("link", name="Discard all 30"))
    operator.use(page.get_by_role("dialog").get_by_role("button", name="Discard 30 jobs"))

    told(page, "Discarded 30 jobs.")
    assert web.inspector.count_failed(FailedFilter(job="store.spam.*")) == 0
    spent(operator, clicks=4, keys=25)


def test_a_queue_is_paused_with_a_reason_for_all(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.open("Queues")
    operator.use(page.get_by_label("Select images"))
    operator.write(page.get_by_label("Reason for the pause"), "the disk is full")
    operator.use(page.get_by_role("button", name="Pause", exact=True))

    told(page, "Paused")
    assert [row["name"] for row in web.inspector.queues() if row["paused"]] == ["billing", "images"]
    expect(page.get_by_role("row").filter(has_text="images")).to_contain_text("paused")
    spent(operator, clicks=4, keys=40)


def test_one_letter_of_a_customer_is_cancelled_before_it_is_sent(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.search("eve@example.com")
    operator.use(page.get_by_role("region", name="Scheduled jobs").get_by_role("link", name="birthday"))
    operator.use(page.get_by_role("button", name="Cancel", exact=True))
    operator.use(page.get_by_role("dialog", name="Cancel this job?").get_by_role("button", name="Cancel 1 job"))

    told(page, "Cancelled 1 job.")
    assert web.inspector.scheduled(job=LETTER).total == 0
    spent(operator, clicks=4, keys=20)


def test_all_retries_for_a_partner_that_is_gone_are_given_up(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.open("Retries")
    operator.write(page.get_by_role("search", name="This list").get_by_label("Queue"), "partner", send=True)
    page.wait_for_url("**/retries?*partner*")
    operator.use(page.get_by_role("link", name="Give up all"))
    operator.use(page.get_by_role("dialog").get_by_role("button", name="Give up 12 jobs"))

    told(page, "Gave up 12 jobs.")
    assert web.inspector.count_failed(FailedFilter(queue="partner")) == 12
    spent(operator, clicks=4, keys=30)


def test_a_job_that_hangs_is_seen_with_its_worker_and_stopped(operator: Operator, web: Web, tmp_path: Path) -> None:
    job = web.client.enqueue("browser.wait", [str(tmp_path / "never")], queue="slow")
    page = operator.page
    running = page.get_by_role("region", name="Working now")
    expect(running.get_by_role("link", name=re.compile(r"pid:\d+@"))).to_be_visible()
    operator.use(running.get_by_role("link", name=job.id[:8]))
    operator.use(page.get_by_role("button", name="Cancel", exact=True))
    operator.use(page.get_by_role("dialog", name="Cancel this job?").get_by_role("button", name="Cancel 1 job"))

    eventually(lambda: [row["id"] for row in web.inspector.history(HistoryFilter(state="cancelled"))] == [job.id])
    spent(operator, clicks=3, keys=30)


def test_a_worker_is_made_quiet_before_its_host_is_mended(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.open("Workers")
    operator.use(page.get_by_role("button", name=re.compile(r"^Quiet worker \d+$")))

    expect(page.get_by_role("button", name=re.compile(r"^Resume worker \d+$"))).to_be_visible()
    assert eventually(lambda: [row["state"] for row in web.inspector.workers()] == ["quiet"])
    web.inspector.control("resume", None)
    spent(operator, clicks=2, keys=10)


def test_a_recurring_report_is_run_once_more_for_another_day(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.open("Recurring")
    operator.use(page.get_by_role("link", name="nightly"))
    operator.use(page.get_by_role("button", name="Run with other arguments"))
    dialog = page.get_by_role("dialog", name="Run nightly now with other arguments")
    operator.write(dialog.get_by_label("Positional arguments"), '["2026-11-20"]')
    operator.use(dialog.get_by_role("button", name="Run now"))

    told(page, "Enqueued store.Nightly")
    assert eventually(lambda: [row["args"] for row in web.inspector.jobs("reports")] == [["2026-11-20"]])
    spent(operator, clicks=5, keys=20)


def test_a_job_that_is_done_is_run_once_more(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.search("invoice 77")
    operator.use(page.get_by_role("region", name="Finished jobs").get_by_role("link", name="invoice"))
    operator.use(page.get_by_role("button", name="Run again", exact=True))

    told(page, "Enqueued again, as this new job.")
    # The page renews itself, and holds the job for a moment each time.
    [row] = eventually(lambda: [row for row in web.inspector.jobs("letters") if row["args"] == ["invoice 77"]])
    assert path_of(page) == f"/jobs/{row['id']}"
    spent(operator, clicks=3, keys=15)


def test_the_slowest_job_class_is_seen_with_its_times(operator: Operator) -> None:
    page = operator.page
    operator.open("Job classes")
    row = page.get_by_role("region", name="Table of job classes").get_by_role("row").filter(has_text="store.Yearly")
    expect(row.locator('[data-label="ran p95"]')).to_contain_text("min")
    operator.use(row.get_by_role("link"))

    expect(page.get_by_role("heading", level=1)).to_have_text("store.Yearly")
    spent(operator, clicks=2, keys=8)


def test_what_a_colleague_did_today_is_listed(operator: Operator) -> None:
    page = operator.page
    operator.open("Audit")
    operator.write(page.get_by_role("search", name="Actions").get_by_label("Who"), "dana", send=True)
    page.wait_for_url("**/audit?*by=dana*")

    rows = page.get_by_role("region", name="Actions").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("the bank moves until 18:00")
    spent(operator, clicks=2, keys=15)


def test_the_jobs_of_one_tenant_are_cleared_and_the_others_stay(operator: Operator, web: Web) -> None:
    page = operator.page
    operator.open("Tenants")
    operator.use(page.get_by_role("button", name="Clear acme"))
    # The worker's leader may have given some of them their turns already; they are removed, too.
    operator.use(page.get_by_role("dialog", name="Clear acme?").get_by_role("button", name=re.compile("^Remove")))

    expect(page.get_by_role("row").filter(has_text="acme")).to_have_count(0)
    assert eventually(lambda: web.inspector.size("api") == 2)
    spent(operator, clicks=3, keys=15)
