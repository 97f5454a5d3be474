"""The tasks of an operator in Chromium, each with its clicks, typed fields and seconds.

    python -m benchmarks.tasks

The shop has 12 queues, 5,000 failed and 2,000 scheduled jobs, and one worker, on the embedded broker. Seconds are those
of the browser and the server, without any time to think.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests import chromium_found
from tests.helpers import eventually
from tests.history.written import ended, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.scheduled_jobs import due
from tests.webui.server import Web

QUEUES, FAILED, SCHEDULED = 12, 5_000, 2_000
DAY = 86_400

_JOBS = """
import time, palermo

@palermo.job(queue="slow", name="shop.Export")
def export(name):
    palermo.current_job().progress(0.4, "page 4 of 10")
    palermo.current_job().log("reading")
    time.sleep(600)
"""


class Hand:
    """An operator's hand: it counts what it does."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.clicks = self.fields = 0

    def open(self, path: str) -> None:
        self.page.goto(self.url + path)

    def click(self, name: str, role: str = "link", within: str = "body", nth: int = 0) -> None:
        self.press(self.page.locator(within).get_by_role(role, name=name).nth(nth))  # type: ignore[arg-type]

    def press(self, target: object) -> None:
        where = self.page.locator(target) if isinstance(target, str) else target
        where.hover()  # type: ignore[attr-defined]
        where.click()  # type: ignore[attr-defined]
        self.clicks += 1

    def type(self, selector: str, text: str, *, enter: bool = False) -> None:
        self.page.locator(selector).fill(text)
        if enter:
            self.page.locator(selector).press("Enter")
        self.fields += 1

    def see(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible()


Task = Callable[[Hand], None]


def slow_now(hand: Hand) -> None:
    hand.open("/")
    expect(hand.page.locator(".problems")).to_contain_text("that no worker serves")


def new_error(hand: Hand) -> None:
    hand.open("/")
    hand.click("shop.NewError", within=".changes")
    hand.see("1 job")


def requeue_one_error(hand: Hand) -> None:
    hand.open("/")
    hand.click("Jobs", within=".nav")
    hand.click("Failed", within=".tabs")
    hand.click("shop.Declined", within=".facets")
    hand.click("q03", within=".facets")
    hand.click("Requeue all")
    hand.press("#confirm button[type=submit]")
    hand.see("Requeued")


def edit_and_requeue(hand: Hand) -> None:
    hand.open("/failures?filter=error:Timeout")
    hand.click("shop.Charge", within="tbody")
    hand.click("Edit and requeue")
    hand.type("textarea >> nth=0", '["mended"]')
    hand.click("Requeue", "button")
    hand.see("Requeued")


def find_customer(hand: Hand) -> None:
    hand.open("/")
    hand.type("#search", "anna4711@example.com", enter=True)
    expect(hand.page.locator("tbody a[href*='/jobs/anna']").first).to_be_visible()


def running_job(hand: Hand) -> None:
    hand.open("/")
    hand.click("shop.Export", within="main")
    hand.see("page 4 of 10")
    hand.click("Stack", "button")
    hand.see("in export")


def stop_it(hand: Hand) -> None:
    hand.open("/running")
    hand.click("shop.Export", within="tbody")
    hand.click("Cancel", "button")
    hand.click("Cancel 1 job", "button")
    hand.see("Cancelled")


def pause_and_resume(hand: Hand) -> None:
    hand.open("/")
    hand.click("Queues", within=".nav")
    hand.press("tbody a:text-is('q05')")
    hand.click("Pause", "button")
    hand.click("Resume", "button")
    expect(hand.page.get_by_role("button", name="Pause")).to_be_visible()


def cancel_scheduled(hand: Hand) -> None:
    hand.open("/scheduled")
    hand.type("input[name=filter]", "job:shop.Remind", enter=True)
    hand.click("Cancel all")
    if hand.page.locator("#confirm input[name=typed]").count():
        hand.type("#confirm input[name=typed]", "1000")
    hand.press("#confirm button[type=submit]")
    hand.see("Cancelled")


def change_cron(hand: Hand) -> None:
    hand.open("/recurring")
    hand.click("nightly", within="tbody")
    hand.click("Edit", "button")
    hand.type("dialog[open] input[name=cron]", "15 4 * * *")
    hand.click("Save", "button", within="dialog[open]")
    hand.see("15 4 * * *")
    hand.click("Run now", "button")
    hand.click("Disable", "button")
    expect(hand.page.get_by_role("button", name="Enable")).to_be_visible()


def drain(hand: Hand) -> None:
    hand.open("/workers")
    hand.press("tbody button:has-text('Quiet')")
    hand.see("to take no more jobs")


def slowest_class(hand: Hand) -> None:
    hand.open("/")
    hand.click("Metrics", within=".nav")
    hand.click("Job classes", within=".tabs")
    hand.press("th .sort >> nth=-1")
    expect(hand.page.locator("th[aria-sort=descending]")).to_have_count(1)


def yesterday(hand: Hand) -> None:
    hand.open("/statistics")
    hand.press(".range summary")
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - DAY))
    hand.type(".range input[name=since]", f"{day}T10:00Z")
    hand.type(".range input[name=until]", f"{day}T11:00Z")
    hand.click("Show", "button")
    expect(hand.page.locator("main")).to_contain_text("994")


def purge(hand: Hand) -> None:
    hand.open("/queues/q07")
    hand.click("Clear", "button")
    hand.press("dialog[open] button[type=submit]")
    hand.see("Removed 300 jobs")


def who(hand: Hand) -> None:
    hand.open("/")
    hand.press(".more summary")
    hand.click("Audit", within=".more")
    hand.see("requeue")


def share(hand: Hand) -> None:
    hand.open("/failures?filter=since:1h")
    hand.press(".range summary")
    hand.click("Copy link", "button")
    expect(hand.page.locator("#pinned")).to_contain_text("until")


def by_keyboard(hand: Hand) -> None:
    hand.open("/")
    for key in ("g", "f", "j", "x"):
        hand.page.wait_for_load_state("load")
        hand.page.keyboard.press(key)
        if key == "f":
            hand.page.wait_for_url("**/failures*")
            hand.open("/failures?by=jobs")
    hand.clicks = 4
    expect(hand.page.locator("input[name=id]:checked")).to_have_count(1)


def on_a_phone(hand: Hand) -> None:
    hand.page.set_viewport_size({"width": 390, "height": 844})
    hand.open("/failures?by=jobs")
    box = hand.page.locator("#live tbody tr").first.bounding_box()
    hand.page.set_viewport_size({"width": 1366, "height": 900})
    assert box is not None
    assert box["y"] < 360


def dark(hand: Hand) -> None:
    hand.open("/")
    hand.press(".menu:not(.range) summary")
    hand.page.locator("[data-theme-select]").select_option("dark")
    hand.fields += 1
    expect(hand.page.locator("html")).to_have_attribute("data-theme", "dark")
    hand.page.locator("[data-theme-select]").select_option("auto")


def move_waiting(hand: Hand) -> None:
    hand.open("/queues/q08")
    hand.press("[data-select-page]")
    hand.press("[data-all]")
    hand.click("Move selected", "button")
    hand.type("dialog[open] input[name=queue]", "q09")
    hand.press("dialog[open] button[type=submit]")
    hand.page.wait_for_load_state("load")
    hand.press("main form button[type=submit]")  # no worker serves that queue
    hand.see("Moved 300 jobs")


def tenants(hand: Hand) -> None:
    hand.open("/")
    hand.press(".more summary")
    hand.click("Tenants", within=".more")
    hand.see("acme")


def two_operators(hand: Hand) -> None:
    hand.open("/failures?filter=error:Twice")
    hand.click("shop.Charge", within="tbody")
    other = hand.page.context.new_page()
    other.goto(hand.page.url)
    other.get_by_role("button", name="Requeue", exact=True).click()
    other.get_by_text("Requeued").wait_for()
    other.close()
    expect(hand.page.locator("h1")).to_contain_text("waiting")


def long_names(hand: Hand) -> None:
    hand.open("/queues")
    expect(hand.page.locator("tbody tr").first).to_be_visible()


TASKS: dict[str, Task] = {
    "why is the shop slow now": slow_now,
    "which error is new, and how many": new_error,
    "requeue one error of one queue": requeue_one_error,
    "edit an argument and requeue": edit_and_requeue,
    "find a customer's job by e-mail": find_customer,
    "arguments, progress, log, stack of a running job": running_job,
    "stop it": stop_it,
    "pause and resume a queue": pause_and_resume,
    "cancel all scheduled jobs of a class": cancel_scheduled,
    "change a cron, run now, disable": change_cron,
    "drain a worker": drain,
    "slowest job class of the hour": slowest_class,
    "throughput of yesterday 10 to 11": yesterday,
    "purge a queue": purge,
    "who requeued what": who,
    "share a link to this view": share,
    "select a failed job by keyboard": by_keyboard,
    "first failed job on a phone": on_a_phone,
    "dark theme": dark,
    "move 300 waiting jobs": move_waiting,
    "a tenant's load": tenants,
    "two operators act on one job": two_operators,
    "all queues": long_names,
}


def fill(web: Web) -> None:
    errors = ("shop.Declined", "shop.Timeout", "shop.Refused")
    charge = {"job": "shop.Charge"}
    jobs = (message(f"f{n}", f"customer{n}@example.com", queue=f"q{n % 10:02}", **charge) for n in range(FAILED))
    publish_failed(web.client, *((job, failure(errors[n % 3], f"order {n}")) for n, job in enumerate(jobs)))
    publish_failed(web.client, (message("twice", job="shop.Charge", queue="q01"), failure("shop.Twice")))
    later = ("shop.Mail", "shop.Remind")
    publish(web.client, *(due(f"s{n}", 9_000 + n, job=later[n % 2]) for n in range(SCHEDULED)))
    for number in range(QUEUES):
        publish(web.client, *(message(f"w{number}-{n}", n, queue=f"q{number:02}") for n in range(300)))
    publish(web.client, message("anna", "anna4711@example.com", queue="q02"), message("t", queue="q11", tenant="acme"))
    web.inspector.recurring.put("nightly", "shop.Report", cron="0 3 * * *", queue="q10")
    half_past_ten = (time.time() // DAY - 1) * DAY + 10.5 * 3_600  # of yesterday
    counts = {"kind": "counts", "at": half_past_ten, "queue": "q01", "job": "shop.Charge", "succeeded": 994}
    write(
        web.client, [counts, ended("new", "failed", at=time.time() - 60, error="shop.NewError", message="never seen")]
    )


@contextlib.contextmanager
def shop(folder: Path) -> Iterator[Web]:
    (folder / "exports.py").write_text(_JOBS)
    settings = Settings(url=f"sqlite:///{folder}/jobs.db")
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(Web(settings))
        fill(web)
        log = stack.enter_context((folder / "worker.log").open("ab"))
        with contextlib.chdir(folder):
            worker = start_worker(["exports"], queues=["slow"], concurrency=2, settings=settings, log=log)
        stack.callback(worker.stop, 1.0)
        for name in ("one", "two"):
            web.client.enqueue("shop.Export", [name], queue="slow")
        eventually(lambda: [row for row in web.inspector.workers.list() if len(row["jobs"]) == 2])
        yield web


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palermo-tasks-")))
        web = stack.enter_context(shop(folder))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium_found.find(), args=["--no-sandbox"]
        )
        context = browser.new_context(viewport={"width": 1366, "height": 900})
        page = context.new_page()
        page.set_default_timeout(30_000)
        for path in ("/", "/failures", "/history", "/scheduled"):  # what is read once is read before
            page.goto(web.url + path)
            page.wait_for_timeout(3_000)
        print(f"{'task':50} clicks fields seconds")
        for name, task in TASKS.items():
            hand, began = Hand(page, web.url), time.perf_counter()
            try:
                task(hand)
                said = ""
            except Exception as error:
                said = f"  FAILED: {str(error).splitlines()[0][:90]}"
            print(f"{name:50} {hand.clicks:6} {hand.fields:6} {time.perf_counter() - began:7.1f}{said}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
