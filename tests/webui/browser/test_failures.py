"""Failed jobs in a browser: found, read, mended, and requeued one by one or as many as are selected."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from palermo.core.topology import FAILED_QUEUE
from palermo.webui import tuning
from palermo.worker.handle import WorkerHandle
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed
from tests.webui.browser.conftest import Open, path_of
from tests.webui.server import Web

Start = Callable[..., WorkerHandle]


def failed_count(web: Web) -> int:
    pending: int = next(row["pending"] for row in web.inspector.queues.list() if row["name"] == FAILED_QUEUE)
    return pending


def test_a_failed_job_is_found_read_mended_requeued_and_succeeds(web: Web, open_page: Open, start: Start) -> None:
    start(queues=["orders"])
    job = web.client.enqueue("browser.parse", ["{not json"], queue="orders")
    eventually(lambda: failed_count(web) == 1)

    page = open_page(f"/jobs/{job.id}")
    own, library = page.locator(".frame-own"), page.locator(".frame-library").first
    expect(own).to_have_count(2)
    expect(own.last).to_contain_text("return json.loads(text)")
    expect(library).to_be_hidden()
    page.get_by_role("button", name="Expand all").click()
    expect(library).to_be_visible()
    with page.expect_response(page.url):
        page.evaluate("window.htmx.trigger(document.body, 'palermo:refresh')")
    expect(library).to_be_visible()

    page.goto(f"{web.url}/failures")
    page.get_by_role("combobox", name="Filter this list").fill("expecting property name")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(re.compile(r"filter=expecting\+property\+name"))
    page.locator("summary", has_text="JSONDecodeError").click()
    expect(page.get_by_label("Traceback", exact=True)).to_contain_text("in read")
    page.get_by_role("link", name=f"Edit and requeue {job.id}").click()
    page.wait_for_url(f"**/failures/{job.id}/edit*")
    expect(page.get_by_label("Positional arguments")).to_have_value(json.dumps(["{not json"], indent=2))
    page.get_by_label("Positional arguments").fill("[")
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    page.get_by_label("Positional arguments").fill('["[1, 2]"]')
    page.get_by_role("button", name="Requeue").click()

    expect(page.get_by_role("status").filter(has_text="Requeued")).to_be_visible()
    # A requeue that takes its time is shown going on, and leads there by a link.
    if path_of(page) != f"/jobs/{job.id}":
        assert path_of(page).startswith("/failures/operations/")
    eventually(lambda: sum(row["processed"] for row in web.inspector.workers.list()) == 2)
    assert failed_count(web) == 0
    page.goto(f"{web.url}/failures")
    expect(page.get_by_text("No job has failed.")).to_be_visible()


def test_a_large_group_is_requeued_by_its_number(web: Web, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "UNTYPED", 19)
    publish_many_failed(web.client, 20)
    publish_failed(web.client, (message("other", queue="other"), failure("KeyError")))
    page = open_page("/failures?by=groups")

    page.get_by_role("link", name="Requeue the group of 20 jobs").click()
    dialog = page.get_by_role("dialog", name="Requeue 20 jobs?")
    button = dialog.get_by_role("button", name="Requeue 20 jobs")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type their number").fill("2")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type their number").fill("20")
    button.click()

    expect(page.get_by_text("Requeued 20 jobs.")).to_be_visible()
    assert eventually(lambda: web.inspector.queues.size("mail") == 20)
    assert [row["id"] for row in web.inspector.failed.list()] == ["other"]


def checked(page: Page) -> list[str]:
    """The ids of the rows that are selected."""
    found: list[str] = page.locator("input[name=id]:checked").evaluate_all("boxes => boxes.map(box => box.value)")
    return found


@pytest.mark.usefixtures("patient")
def test_jobs_are_selected_with_shift_by_the_page_and_all_that_match(web: Web, open_page: Open) -> None:
    publish_many_failed(web.client, 30)
    page = open_page("/failures?limit=20")
    select, dialog = page.locator("input[name=id]"), page.get_by_role("dialog")
    expect(select).to_have_count(20)
    expect(page.get_by_role("button", name="Discard selected")).to_have_count(0)

    select.nth(2).click()
    select.nth(5).click(modifiers=["Shift"])
    assert checked(page) == ["27", "26", "25", "24"]
    expect(page.get_by_text("4 selected")).to_be_visible()
    select.nth(3).click()
    for act in ("Requeue", "Discard"):  # a dialog that was left lets the selection be used again
        page.get_by_role("button", name=f"{act} selected").click()
        page.get_by_role("dialog", name=f"{act} 3 jobs?").get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Discard selected").click()
    dialog.get_by_role("button", name="Discard 3 jobs").click()
    expect(page.get_by_text("Discarded 3 jobs.")).to_be_visible()
    assert not {"27", "25", "24"} & {row["id"] for row in web.inspector.failed.list()}

    page.get_by_label("Select this page").click()
    assert len(checked(page)) == 20
    page.get_by_label("All 27 that match").click()
    page.get_by_role("button", name="Requeue selected").click()
    dialog.get_by_label("Queue").fill("elsewhere")
    dialog.get_by_role("button", name="Requeue 27 jobs").click()
    expect(page.get_by_text("no worker serves queue 'elsewhere'")).to_be_visible()
    page.get_by_role("button", name="Requeue 27 jobs").click()
    expect(page.get_by_text("Requeued 27 jobs.")).to_be_visible()
    assert eventually(lambda: web.inspector.queues.size("elsewhere") == 27)


def test_a_selection_outlasts_another_page_and_holds_back_changes(web: Web, open_page: Open) -> None:
    publish_failed(web.client, *((message(f"m-{nth}"), failure()) for nth in range(3)))
    page = open_page("/failures")
    page.get_by_role("checkbox", name="Select m-1").check()

    page.locator("a[title=m-1]").click()
    expect(page.locator("#job-id")).to_have_text("m-1")
    page.go_back()

    chosen = page.get_by_role("checkbox", name="Select m-1")
    expect(chosen).to_be_checked()
    expect(page.locator("[data-chosen]")).to_have_text("1 selected")
    expect(page.get_by_role("button", name="Requeue selected")).to_be_enabled()

    # Without a selection new failures appear; with one the page waits.
    chosen.click()
    publish_failed(web.client, (message("new"), failure(at=1_800_000_000)))
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_label("Select new", exact=True).click()
    web.inspector.failed.discard("m-0")
    expect(page.locator(".live-state")).to_have_text("Held")
    expect(page.locator(".live-state[data-pending]")).to_have_text("Held")
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_label("Select new", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(3)
