"""The link of `palermo web` in a browser."""

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.webui.process import WebProcess


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebProcess]:
    """`palermo web` as one begins with it, on the embedded broker."""
    with WebProcess(tmp_path) as web:
        yield web


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context() as window:
        window.set_default_timeout(20_000)
        yield window.new_page()


@pytest.fixture
def elsewhere(web: WebProcess) -> Iterator[str]:
    """A page of another site that links to ours."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a href="{web.url}/queues">queues</a><a href="{web.link}">begin</a>'.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def test_the_link_opens_the_pages_and_the_token_stays_out_of_the_address_bar(web: WebProcess, page: Page) -> None:
    web.http.post("/api/jobs", json={"job": "shop.mail", "queue": "mail"})
    page.goto(f"{web.url}/queues")
    expect(page.get_by_role("alert")).to_contain_text("open the link that was printed")

    page.goto(web.link)
    expect(page).to_have_url(f"{web.url}/")
    page.goto(f"{web.url}/queues/mail")
    page.get_by_role("button", name="Pause").first.click()

    expect(page.get_by_role("button", name="Resume").first).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    page.go_back()
    assert "token" not in page.url


def test_a_link_of_another_site_leads_in_where_the_browser_has_the_token(
    web: WebProcess, page: Page, elsewhere: str
) -> None:
    page.goto(elsewhere)
    page.get_by_role("link", name="queues").click()
    expect(page.get_by_role("alert")).to_contain_text("open the link that was printed")

    page.goto(elsewhere)
    page.get_by_role("link", name="begin").click()
    expect(page).to_have_title(re.compile("Overview"))
    expect(page).to_have_url(f"{web.url}/")

    page.goto(elsewhere)
    page.get_by_role("link", name="queues").click()
    expect(page).to_have_title(re.compile("Queues"))
    expect(page).to_have_url(f"{web.url}/queues")
