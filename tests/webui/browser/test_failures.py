"""Failed jobs in a browser: found, read, mended, requeued one by one and by the thousand."""

import json
import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from palermo.core.topology import FAILED_QUEUE
from palermo.worker.handle import WorkerHandle
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed
from tests.scale import scaled
from tests.webui.browser.conftest import Open, path_of
from tests.webui.server import Web

Start = Callable[..., WorkerHandle]

XSS = '"><script>document.title="owned"</script><img src=x onerror=document.title="owned">'


def boxes(page: Page) -> list[str]:
    """The ids of the rows that are selected."""
    found: list[str] = page.locator("input[name=id]:checked").evaluate_all("boxes => boxes.map(box => box.value)")
    return found


def failed_count(web: Web) -> int:
    pending: int = next(row["pending"] for row in web.inspector.queues() if row["name"] == FAILED_QUEUE)
    return pending


def test_a_failed_job_is_found_read_mended_requeued_and_seen_to_succeed(
    web: Web, open_page: Open, start: Start
) -> None:
    start(queues=["orders"])
    job = web.client.enqueue("browser.parse", ["{not json"], queue="orders")
    eventually(lambda: failed_count(web) == 1)

    page = open_page("/failures")
    page.get_by_label("Text", exact=True).fill("expecting property name")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(re.compile(r"text=expecting\+property\+name"))
    page.locator("summary", has_text="JSONDecodeError").click()
    expect(page.get_by_label("Traceback", exact=True)).to_contain_text("in read")
    page.get_by_role("link", name=f"Edit and requeue {job.id}").click()
    page.wait_for_url(f"**/failures/{job.id}/edit*")
    expect(page.get_by_label("Positional arguments")).to_have_value(json.dumps(["{not json"], indent=2))
    page.get_by_label("Positional arguments").fill("[")
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("alert")).to_contain_text("not JSON")
    page.get_by_label("Positional arguments").fill('["[1, 2]"]')
    page.get_by_role("button", name="Requeue").click()

    expect(page.get_by_role("status").filter(has_text="Requeued")).to_be_visible()
    # A requeue that takes its time is shown going on, and leads there by a link.
    if path_of(page) != f"/jobs/{job.id}":
        assert path_of(page).startswith("/failures/operations/")
    eventually(lambda: sum(row["processed"] for row in web.inspector.workers()) == 2)
    assert failed_count(web) == 0
    page.goto(f"{web.url}/failures")
    expect(page.get_by_text("Nothing has failed.")).to_be_visible()


def test_a_group_of_thousands_is_requeued_once_its_number_is_typed(web: Web, open_page: Open) -> None:
    many = scaled(1_200, 5_000)
    publish_many_failed(web.client, many)
    publish_failed(web.client, (message("other", queue="other"), failure("KeyError")))
    page = open_page("/failures?by=groups")

    page.get_by_role("link", name=f"Requeue the group of {many:,} jobs").click()
    dialog = page.get_by_role("dialog", name=f"Requeue {many:,} jobs?")
    button = dialog.get_by_role("button", name=f"Requeue {many:,} jobs")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type their number").fill("500")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type their number").fill(f"{many}")
    button.click()

    expect(page.get_by_text(f"Requeued {many:,} jobs.")).to_be_visible(timeout=240_000)
    assert eventually(lambda: web.inspector.size("mail") == many)
    assert [row["id"] for row in web.inspector.failed()] == ["other"]
    page.goto(f"{web.url}/failures")
    expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.usefixtures("patient")
def test_several_are_selected_with_shift_and_discarded_in_a_dialog(web: Web, open_page: Open) -> None:
    publish_many_failed(web.client, 10)
    page = open_page("/failures")
    select = page.locator("input[name=id]")
    expect(select).to_have_count(10)
    expect(page.get_by_role("button", name="Discard selected")).to_be_disabled()

    select.nth(2).click()
    select.nth(5).click(modifiers=["Shift"])
    assert boxes(page) == ["7", "6", "5", "4"]
    expect(page.get_by_text("4 selected")).to_be_visible()
    select.nth(3).click()
    page.get_by_role("button", name="Discard selected").click()
    expect(page.get_by_role("dialog", name="Discard 3 jobs?")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Discard 3 jobs").click()

    expect(page.get_by_text("Discarded 3 jobs.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(7)
    assert [row["id"] for row in web.inspector.failed()] == ["0", "1", "2", "3", "6", "8", "9"]


def test_the_page_is_selected_at_once_and_so_is_all_that_matches(web: Web, open_page: Open) -> None:
    publish_many_failed(web.client, 30)
    page = open_page("/failures?limit=20")

    expect(page.locator("input[name=id]")).to_have_count(20)
    page.get_by_label("Select this page").click()
    assert len(boxes(page)) == 20
    page.get_by_label("All 30 that match").click()
    page.get_by_role("button", name="Requeue selected").click()
    page.get_by_role("dialog", name="Requeue 30 jobs?").get_by_label("Queue").fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Requeue 30 jobs").click()
    expect(page.get_by_text("no worker serves queue 'elsewhere'")).to_be_visible()
    page.get_by_role("button", name="Requeue 30 jobs").click()

    expect(page.get_by_text("Requeued 30 jobs.")).to_be_visible()
    assert eventually(lambda: web.inspector.size("elsewhere") == 30)


def test_a_selection_is_there_again_for_who_comes_back(web: Web, open_page: Open) -> None:
    publish_failed(web.client, *((message(f"m-{nth}"), failure()) for nth in range(3)))
    page = open_page("/failures")
    page.get_by_role("checkbox", name="Select m-1").check()

    page.get_by_role("link", name="m-1", exact=True).click()
    expect(page.locator("#job-id")).to_have_text("m-1")
    page.go_back()

    expect(page.get_by_role("checkbox", name="Select m-1")).to_be_checked()
    expect(page.locator("[data-chosen]")).to_have_text("1 selected")
    expect(page.get_by_role("button", name="Requeue selected")).to_be_enabled()


def test_new_failures_appear_except_during_a_selection(web: Web, open_page: Open) -> None:
    publish_many_failed(web.client, 2)
    page = open_page("/failures")
    expect(page.locator("tbody tr")).to_have_count(2)

    publish_failed(web.client, (message("new"), failure(at=1_800_000_000)))
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Select new", exact=True).click()
    web.inspector.discard("0")
    expect(page.locator(".live-state")).to_have_text("Held")
    expect(page.locator(".live-state[data-pending]")).to_have_text("Held")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Select new", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(2)


def all_read(web: Web) -> None:
    """Wait until the pages have read all failed jobs: before that a page without script does not show them."""
    eventually(lambda: "Load again" not in web.http.get("/failures").text)


@pytest.mark.usefixtures("patient")
def test_everything_is_done_without_script(web: Web, open_page: Open) -> None:
    publish_many_failed(web.client, 4)
    all_read(web)
    page = open_page("/failures", java_script_enabled=False)

    page.get_by_role("button", name="Requeue 3", exact=True).click()
    expect(page.get_by_text("Requeued 1 job.")).to_be_visible()
    page.get_by_label("Select 2", exact=True).check()
    page.get_by_label("Select 0", exact=True).check()
    page.get_by_role("button", name="Discard selected").click()
    page.wait_for_url("**/failures/confirm")
    page.get_by_role("button", name="Discard 2 jobs").click()
    expect(page.get_by_text("Discarded 2 jobs.")).to_be_visible()

    assert [row["id"] for row in web.inspector.failed()] == ["1"]
    assert eventually(lambda: [row["id"] for row in web.inspector.jobs("mail")] == ["3"])


def test_what_a_job_holds_is_shown_as_text(web: Web, open_page: Open) -> None:
    job = message(XSS, XSS, queue="mail", job=XSS, preview=XSS)
    publish_failed(web.client, (job, failure(XSS, XSS)))

    for path in ("/failures", "/failures?by=groups"):
        page = open_page(path)
        expect(page.locator("tbody")).to_contain_text(XSS)
        assert page.locator("main script, main img").count() == 0
        assert "owned" not in page.title()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_a_hundred_jobs_with_long_ids_are_selected_at_once(web: Web, open_page: Open, script: bool) -> None:
    long = [f"{nth:03}-".ljust(250, "x") for nth in range(104)]
    publish_failed(web.client, *((message(id), failure()) for id in long))
    all_read(web)
    page = open_page("/failures?queue=mail&limit=100", java_script_enabled=script)
    for row in page.locator("tbody input[name=id]").all()[: 1 if script else 100]:
        row.check()
    if script:
        page.get_by_label("Select this page").click()

    page.get_by_role("button", name="Discard selected").click()
    dialog = page.get_by_role("dialog", name="Discard 100 jobs?")
    expect(dialog).to_be_visible()
    if not script:
        page.reload()  # The browser sends the same selection again; that changes nothing.
        expect(dialog).to_be_visible()
        page.go_back()
        expect(page.locator("tbody input[name=id]").first).to_be_checked()
        page.get_by_role("button", name="Discard selected").click()
    dialog.get_by_role("button", name="Discard 100 jobs").click()

    expect(page.get_by_text("Discarded 100 jobs.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(4)
    assert page.url == f"{web.url}/failures?queue=mail&limit=100"


def test_a_dialog_that_was_left_lets_the_selection_be_used_again(web: Web, open_page: Open) -> None:
    publish_many_failed(web.client, 2)
    page = open_page("/failures")
    page.locator("tbody input[name=id]").first.check()

    for act in ("Discard", "Requeue"):
        page.get_by_role("button", name=f"{act} selected").click()
        page.get_by_role("dialog", name=f"{act} 1 job?").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)

    expect(page.get_by_role("button", name="Requeue selected")).to_be_enabled()


def test_a_job_that_failed_by_a_clock_that_is_ahead_says_so(web: Web, open_page: Open) -> None:
    publish_failed(web.client, (message("a"), failure(at=int(time.time()) + 7_300)))

    page = open_page("/failures")

    cell = page.get_by_role("cell", name="clock 2 h ahead")
    expect(cell).to_be_visible()
    page.get_by_role("button", name="Exact times").click()
    expect(cell).to_have_count(0)
    page.get_by_role("button", name="Exact times").click()
    expect(cell).to_be_visible()
