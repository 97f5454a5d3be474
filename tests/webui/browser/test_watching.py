"""An operator's work in a real browser, while a real worker works."""

import re
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from palermo.settings.settings import Settings
from palermo.worker.handle import WorkerHandle
from tests.helpers import eventually
from tests.tcp_proxy import TcpProxy
from tests.webui.browser.conftest import Open, path_of
from tests.webui.conftest import Serve
from tests.webui.server import Web

Start = Callable[..., WorkerHandle]


def test_a_job_is_seen_waiting_running_and_gone_without_a_reload(
    web: Web, open_page: Open, start: Start, tmp_path: Path
) -> None:
    page = open_page("/")
    page.evaluate("window.same = true")
    expect(page.get_by_text("Nothing is running.")).to_be_visible()
    expect(page.locator(".live-state")).to_have_text("Live")

    job = web.client.enqueue("browser.wait", [str(tmp_path / "go")], queue="slow")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="slow"))
    expect(row.get_by_role("cell").nth(0)).to_have_text("1")
    start()
    running = page.get_by_role("region", name="Working now")
    expect(running).to_contain_text("browser.wait")
    (tmp_path / "go").touch()

    expect(page.get_by_text("Nothing is running.")).to_be_visible()
    assert page.evaluate("window.same") is True
    page.goto(f"{web.url}/jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("browser.wait done")
    expect(page.locator(".timeline")).to_contain_text("Started")


@pytest.mark.usefixtures("patient")
def test_a_failed_job_is_read_and_requeued_and_its_page_shows_the_new_run(
    web: Web, open_page: Open, start: Start
) -> None:
    web.client.enqueue("browser.parse", ["{no json"], queue="orders")
    start()
    eventually(lambda: len(web.inspector.failed()) == 1)
    [failed] = web.inspector.failed().rows

    page = open_page("/")
    page.get_by_label("Search all jobs by id").fill(failed["id"])
    page.keyboard.press("Enter")

    expect(page.locator(".error-line")).to_contain_text("json.decoder.JSONDecodeError: Expecting property name")
    own = page.locator(".frame-own")
    expect(own).to_have_count(2)
    expect(own.last).to_contain_text("return json.loads(text)")
    library = page.locator(".frame-library").first
    expect(library).to_be_hidden()
    with page.expect_response(page.url):
        page.evaluate("window.htmx.trigger(document.body, 'palermo:refresh')")
    page.get_by_role("button", name="Unfold all").click()
    expect(library).to_be_visible()
    expect(page.locator("#args")).to_have_text('["{no json"]')

    page.get_by_role("button", name="Requeue").click()
    expect(page.locator(".flash")).to_contain_text("Requeued")
    assert path_of(page) == f"/jobs/{failed['id']}"
    expect(page.locator(".timeline .what").filter(has_text="Failed")).to_have_count(2)


def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(web: Web, open_page: Open, start: Start) -> None:
    web.client.enqueue("browser.send", ["first@example.com"], queue="mail")
    page = open_page("/queues/mail")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("h1 .badge", has_text="paused")).to_be_visible()
    start()
    eventually(lambda: [row["state"] for row in web.inspector.workers()] == ["idle"])

    expect(page.get_by_text("first@example.com")).to_be_visible()
    page.get_by_role("button", name="Resume").click()

    expect(page.get_by_text("Nothing waits here.")).to_be_visible()
    expect(page.locator("h1 .badge", has_text="paused")).to_have_count(0)


class SlowRenewals:
    """Answers of the server to a page that renews itself, which reach the page when `release` is called."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._answers: list[tuple[Route, APIResponse]] = []
        self._slow = True
        page.route("**/*", self._hold)

    def await_one(self) -> None:
        while not self._answers:
            self._page.wait_for_timeout(20)

    def release(self) -> None:
        self._slow = False
        for route, answer in self._answers:
            route.fulfill(response=answer)

    def _hold(self, route: Route) -> None:
        if self._slow and "hx-request" in route.request.headers:
            self._answers.append((route, route.fetch()))
        else:
            route.fallback()


def test_a_slow_answer_takes_away_nothing_that_was_typed_meanwhile(web: Web, open_page: Open) -> None:
    page = open_page("/queues")
    renewals = SlowRenewals(page)
    web.client.enqueue("shop.resize", ["cat.png"], queue="images")
    renewals.await_one()
    page.get_by_role("button", name="Enqueue a job").click()
    page.get_by_label("Job", exact=True).fill("browser.send")

    renewals.release()

    expect(page.locator(".live-state[data-pending]")).to_have_text("Held")
    expect(page.get_by_label("Job", exact=True)).to_have_value("browser.send")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("link", name="images")).to_be_visible()


def test_what_changes_while_the_page_renews_itself_is_shown_as_well(web: Web, open_page: Open) -> None:
    page = open_page("/queues")
    renewals = SlowRenewals(page)
    web.client.enqueue("shop.resize", ["cat.png"], queue="first")
    renewals.await_one()
    web.client.enqueue("shop.resize", ["cat.png"], queue="second")
    expect(page.locator(".live-state[data-pending]")).to_have_text("Live")

    renewals.release()

    expect(page.get_by_role("link", name="second")).to_be_visible()


def test_workers_of_a_host_are_made_quiet_and_resumed(web: Web, open_page: Open, start: Start) -> None:
    worker = start(concurrency=2)
    eventually(lambda: [row["state"] for row in web.inspector.workers()] == ["idle"])
    page = open_page("/workers")

    page.get_by_role("button", name=f"Quiet worker {worker.pid}").click()
    expect(page.get_by_role("row").filter(has_text=str(worker.pid)).locator(".badge")).to_have_text("quiet")
    page.get_by_role("button", name="Show the stacks").click()
    expect(page.locator("pre.code")).to_contain_text(re.compile("File .*palermo"))
    page.get_by_role("link", name="Workers").first.click()
    page.get_by_role("button", name=f"Resume worker {worker.pid}").click()

    expect(page.get_by_role("row").filter(has_text=str(worker.pid)).locator(".badge")).to_have_text("idle")


def test_a_job_is_enqueued_by_hand(web: Web, open_page: Open) -> None:
    page = open_page("/queues")
    page.get_by_role("button", name="Enqueue a job").click()
    page.get_by_label("Job", exact=True).fill("browser.send")
    page.get_by_label("Queue", exact=True).fill("by hand")
    page.get_by_label("Positional arguments").fill('["a@example.com"]')
    page.get_by_label("Named arguments").fill('{"subject": "<b>bold</b>", "password": "secret"}')
    page.get_by_role("dialog").get_by_role("button", name="Enqueue").click()

    expect(page.locator("h1")).to_contain_text("browser.send")
    expect(page.locator("#kwargs")).to_contain_text('"subject": "<b>bold</b>"')
    expect(page.locator("#kwargs")).not_to_contain_text("secret")
    # The page renews itself, and holds the job for a moment each time.
    [row] = eventually(lambda: web.inspector.jobs("by hand").rows)
    assert row["kwargs"] == {"subject": "<b>bold</b>", "password": "secret"}


def test_the_page_of_a_deleted_queue_recovers_with_the_queue(web: Web, open_page: Open) -> None:
    web.client.enqueue("browser.send", ["first@example.com"], queue="mail")
    page = open_page("/queues/mail")
    expect(page.get_by_text("first@example.com")).to_be_visible()

    web.inspector.delete_queue("mail")

    expect(page.locator("h1")).to_have_text("Not found")
    # Two, since the server compares counts, and may not have looked while the queue was gone.
    for name in ("second", "third"):
        web.client.enqueue("browser.send", [f"{name}@example.com"], queue="mail")
    expect(page.get_by_text("third@example.com")).to_be_visible()
    expect(page.locator(".live-state")).to_have_text("Live")


def test_an_open_page_says_that_it_is_out_of_date_until_it_is_renewed(web: Web, open_page: Open) -> None:
    page = open_page("/queues")
    state = page.locator(".live-state")
    expect(state).to_have_text("Live")

    page.route("**/queues", lambda route: route.fulfill(status=503))
    page.keyboard.press("r")
    expect(state).to_have_text("Out of date")

    page.unroute("**/queues")
    expect(state).to_have_text("Live")


@pytest.mark.parametrize("path", ["/failures", "/queues"])
def test_an_open_page_says_that_the_broker_is_away_and_not_that_it_is_live(
    chromium: Browser, serve: Serve, rabbitmq_url: str, exchange: str, path: str
) -> None:
    address = pika.URLParameters(rabbitmq_url)
    with TcpProxy(address.host, address.port) as proxy, chromium.new_context() as window:
        through = rabbitmq_url.replace(f":{address.port}/", f":{proxy.port}/")
        web = serve(Settings(url=through, exchange=exchange))
        web.client.enqueue("browser.send", ["first@example.com"], queue="mail")
        page = window.new_page()
        page.goto(web.url + path)
        banner, state = page.locator("#trouble"), page.locator(".live-state")
        expect(state).to_have_text("Live")
        expect(banner).to_be_hidden()

        proxy.refuse()
        proxy.hang_up()
        expect(banner).to_contain_text("Workers go on by themselves once it is back")
        expect(state).to_have_text("Out of date")

        proxy.listen()
        expect(banner).to_be_hidden()
        expect(state).to_have_text("Live")


def test_the_answer_to_a_form_of_an_old_page_stays(web: Web, open_page: Open) -> None:
    def keep_as_it_is(route: Route) -> None:
        if "hx-request" in route.request.headers:
            route.fulfill(status=503)
        else:
            route.fallback()

    web.client.enqueue("shop.mail", queue="mail")
    page = open_page("/queues")
    page.route("**/queues/mail", keep_as_it_is)
    page.goto(f"{web.url}/queues/mail")
    web.inspector.delete_queue("mail")

    page.get_by_role("button", name="Pause", exact=True).click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    page.keyboard.press("r")
    web.client.enqueue("shop.mail", queue="orders")
    expect(page.locator("[role=alert]")).to_contain_text("there is no queue 'mail'")
    expect(page.locator("#live")).to_have_count(0)
