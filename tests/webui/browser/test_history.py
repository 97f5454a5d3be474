"""The pages of the journal in a browser: live, found by filters, and on to a job's whole life."""

from playwright.sync_api import expect

from tests.history.written import ended, enqueued, failed, write
from tests.webui.browser.conftest import Open, path_of
from tests.webui.browser.test_using import lead
from tests.webui.server import Web


def test_what_ends_appears_without_a_reload_and_leads_to_its_life(web: Web, open_page: Open) -> None:
    write(web.client, [enqueued("first"), ended("first"), failed("second", job="shop.send")])
    page = open_page("/")
    lead(page, "h", "/history")
    rows = page.locator("table.history tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("no such thing")

    write(web.client, [ended("third", "discarded", reason="too late")])
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("too late")

    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="Clear filters").click()
    page.get_by_role("link", name="first", exact=True).click()
    expect(page.locator(".timeline .what")).to_have_text(["Enqueued", "Started", "Done"])
    assert path_of(page) == "/jobs/first"

    web.inspector.pause("mail")
    page.get_by_role("link", name="Audit").click()
    expect(page.locator("table.history tbody tr")).to_have_count(1)
    expect(page.locator("table.history")).to_contain_text("pause")
