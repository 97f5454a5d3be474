"""Getting into the pages in a browser: by the link of `palermo web`, and by a password."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from palermo.settings.settings import Settings
from palermo.webui import Role
from palermo.webui.security.user_file import password_line
from tests.webui.browser.conftest import PHONE
from tests.webui.browser.looks import misfits, violations
from tests.webui.process import WebProcess
from tests.webui.server import CHEAP, Web


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """`palermo web` as one begins with it, on the embedded broker."""
    with WebProcess(tmp_path_factory.mktemp("alone")) as web:
        yield web


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context() as window:
        window.set_default_timeout(20_000)
        yield window.new_page()


def test_a_link_of_another_site_leads_in_where_the_browser_has_the_token(web: WebProcess, page: Page) -> None:
    elsewhere = "http://elsewhere.example/"
    links = f'<a href="{web.url}/queues">queues</a><a href="{web.link}">begin</a>'
    page.route(elsewhere, lambda route: route.fulfill(content_type="text/html", body=links))
    page.goto(elsewhere)
    page.get_by_role("link", name="queues").click()
    expect(page.get_by_role("alert")).to_contain_text("Open the link that this server printed")

    page.goto(elsewhere)
    page.get_by_role("link", name="begin").click()
    expect(page).to_have_title(re.compile("Overview"))
    expect(page).to_have_url(f"{web.url}/")

    page.goto(elsewhere)
    page.get_by_role("link", name="queues").click()
    expect(page).to_have_title(re.compile("Queues"))
    expect(page).to_have_url(f"{web.url}/queues")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Pages with one user of a file, ada."""
    folder = tmp_path_factory.mktemp("guarded")
    users = folder / "users"
    users.write_text(password_line("ada", Role.ADMIN, "pässwörd", hasher=CHEAP) + "\n")
    with Web(Settings(url=f"sqlite:///{folder}/jobs.db"), users=str(users)) as web:
        yield web


def test_signing_in_leads_to_the_page_and_signing_out_ends_it(guarded: Web, page: Page) -> None:
    page.goto(f"{guarded.url}/queues?text=mail")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("wrong name or password")
    page.get_by_label("Password").fill("pässwörd")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{guarded.url}/queues?text=mail")

    other = page.context.new_page()
    other.goto(f"{guarded.url}/workers")
    other.get_by_role("button", name="Sign out ada").click()
    expect(other.get_by_role("heading", name="Sign in to Palermo")).to_be_visible()
    # An open page is led to the form as soon as it asks for news.
    page.bring_to_front()
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Sign in to Palermo")).to_be_visible()


def test_the_form_fits_its_window_and_is_clean_for_axe(guarded: Web, chromium: Browser) -> None:
    for options in ({"color_scheme": "light"}, {"color_scheme": "dark"}, PHONE):
        with chromium.new_context(**options) as window:
            page = window.new_page()
            page.goto(f"{guarded.url}/queues")
            assert misfits(page, touch=options is PHONE) + violations(page) == []
