"""The search by keyboard, in a browser: from any page to the job, with filters that are offered and taken away."""

import re

from playwright.sync_api import expect

from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.browser.conftest import Open, path_of
from tests.webui.server import Web


def test_a_failed_job_is_found_by_keyboard_from_any_page(web: Web, open_page: Open) -> None:
    publish_failed(web.client, (message("bad-1", "order 1058"), failure("Timeout", "no answer for order 1058")))
    web.client.enqueue("shop.send", ["order 7"], queue="orders")
    page = open_page("/workers")

    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Search all jobs")
    expect(field).to_be_focused()
    page.keyboard.type("order 1058\n")
    expect(page.get_by_role("heading", name="Failed")).to_be_visible()
    expect(field).to_have_value("order 1058")
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    page.wait_for_url("**/jobs/bad-1?queue=mail")


def test_a_filter_is_offered_after_other_words_and_taken_away_by_its_cross(web: Web, open_page: Open) -> None:
    web.client.enqueue("shop.send", ["order 7"], queue="orders")
    web.client.enqueue("shop.send", ["order 7"], queue="mail")
    page = open_page("/")
    field = page.get_by_role("combobox", name="Search all jobs")

    field.press_sequentially("order que")
    assert page.locator('#search-offers option[value="order queue:orders"]').count() == 1
    field.fill("queue:orders order")
    field.press("Enter")
    expect(page.locator("#waiting-title + .badge")).to_have_text("1")
    page.get_by_role("link", name="Search without queue:orders").click()

    expect(page.locator("#waiting-title + .badge")).to_have_text("2")
    assert path_of(page) == "/search"


def test_the_search_needs_no_script_and_tells_a_mistake_at_its_field(web: Web, open_page: Open) -> None:
    web.client.enqueue("shop.send", ["order 7"], queue="orders")
    page = open_page("/", java_script_enabled=False)
    field = page.get_by_role("combobox", name="Search all jobs")

    field.fill("que:orders")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Did you mean 'queue'?")
    expect(field).to_have_accessible_description(re.compile("^There is no filter 'que:'"))
    field.fill("queue:orders")
    field.press("Enter")

    expect(page.get_by_text("order 7")).to_be_visible()
