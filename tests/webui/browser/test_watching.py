"""Open pages in a browser: they show what changes, and say so where they cannot."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from palermo.settings.settings import Settings
from palermo.worker.handle import WorkerHandle
from tests.tcp_proxy import TcpProxy
from tests.webui.browser.conftest import Open
from tests.webui.conftest import Serve
from tests.webui.server import Web

Start = Callable[..., WorkerHandle]


def test_a_job_is_seen_waiting_running_and_gone_live(web: Web, open_page: Open, start: Start, tmp_path: Path) -> None:
    page = open_page("/")
    page.evaluate("window.same = true")
    expect(page.get_by_text("No job is running.")).to_be_visible()
    expect(page.locator(".live-state")).to_have_text("Live")

    job = web.client.enqueue("browser.wait", [str(tmp_path / "go")], queue="slow")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="slow"))
    expect(row.get_by_role("cell").nth(0)).to_have_text("1")
    start()
    running = page.get_by_role("region", name="Working now")
    expect(running).to_contain_text("browser.wait")
    (tmp_path / "go").touch()

    expect(page.get_by_text("No job is running.")).to_be_visible()
    assert page.evaluate("window.same") is True
    page.goto(f"{web.url}/jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("browser.wait done")
    expect(page.locator(".timeline")).to_contain_text("Started")


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


@pytest.mark.parametrize("typed", [True, False])
def test_a_slow_answer_takes_away_nothing_and_hides_no_change(web: Web, open_page: Open, typed: bool) -> None:
    page = open_page("/queues")
    renewals, pending = SlowRenewals(page), page.locator(".live-state[data-pending]")
    web.client.enqueue("shop.resize", ["cat.png"], queue="first")
    renewals.await_one()
    if typed:
        page.get_by_role("button", name="Enqueue a job").click()
        page.get_by_label("Job", exact=True).fill("browser.send")
    else:
        web.client.enqueue("shop.resize", ["cat.png"], queue="second")
        expect(pending).to_have_text("Live")

    renewals.release()

    if typed:
        expect(pending).to_have_text("Held")
        expect(page.get_by_label("Job", exact=True)).to_have_value("browser.send")
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("link", name="first" if typed else "second")).to_be_visible()


def test_the_page_of_a_deleted_queue_recovers_with_the_queue(web: Web, open_page: Open) -> None:
    web.client.enqueue("browser.send", ["first@example.com"], queue="mail")
    page = open_page("/queues/mail")
    expect(page.get_by_text("first@example.com")).to_be_visible()

    web.inspector.queues.delete("mail")

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


@pytest.mark.parametrize("dialog", [False, True])
def test_no_form_is_sent_while_the_server_does_not_answer(web: Web, chromium: Browser, dialog: bool) -> None:
    web.client.enqueue("browser.send", ["first@example.com"], queue="mail")
    with TcpProxy("127.0.0.1", urlsplit(web.url).port or 0) as proxy, chromium.new_context() as window:
        page = window.new_page()
        page.goto(f"{proxy.url(web.url)}/queues/mail{'?ask=clear' * dialog}")
        state, banner = page.locator(".live-state"), page.locator("#stale")
        expect(state).to_have_text("Held" if dialog else "Live")
        button = page.locator("dialog[open] [type=submit]" if dialog else "form[action$='/pause'] [type=submit]")

        proxy.refuse()
        proxy.hang_up()
        expect(state).to_have_text("Out of date")
        expect(banner).to_contain_text("The server does not answer")
        address = page.url
        button.click()
        page.wait_for_timeout(300)
        assert page.url == address

        proxy.listen()
        expect(state).to_have_text("Held" if dialog else "Live")
        expect(banner).to_be_hidden()
        button.click()
        expect(page.locator(".flash")).to_be_visible()


@pytest.mark.parametrize("path", ["/failures", "/queues"])
def test_an_open_page_says_that_the_broker_is_away_and_not_that_it_is_live(
    chromium: Browser, proxied: tuple[TcpProxy, Settings], serve: Serve, path: str
) -> None:
    proxy, settings = proxied
    web = serve(settings)
    web.client.enqueue("browser.send", ["first@example.com"], queue="mail")
    with chromium.new_context() as window:
        page = window.new_page()
        page.goto(web.url + path)
        banner, state = page.locator("#trouble"), page.locator(".live-state")
        expect(state).to_have_text("Live")
        expect(banner).to_be_hidden()

        proxy.refuse()
        proxy.hang_up()
        expect(banner).to_contain_text("Workers continue automatically once it is available again")
        expect(state).to_have_text("Out of date")

        proxy.listen()
        expect(banner).to_be_hidden()
        expect(state).to_have_text("Live")
