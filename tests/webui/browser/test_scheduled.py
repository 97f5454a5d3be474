"""Scheduled jobs and retries in a browser: chosen, cancelled in a dialog, and what is said when that comes too late."""

import re

from playwright.sync_api import expect

from tests.helpers import eventually
from tests.webui.browser.conftest import Open, path_of
from tests.webui.browser.test_using import lead
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web


def test_cancelling_several_names_the_one_that_came_due(web: Web, open_page: Open) -> None:
    schedule(web.client, *(due(f"job-{n}", 3_600 + n) for n in range(5)))
    page = open_page("/scheduled")
    expect(page.locator("tbody tr")).to_have_count(5)
    expect(page.get_by_role("button", name="Cancel selected")).to_be_disabled()

    page.locator("input[name=id]").nth(0).click()
    page.locator("input[name=id]").nth(2).click(modifiers=["Shift"])
    page.get_by_role("button", name="Cancel selected").click()
    dialog = page.get_by_role("dialog", name="Cancel 3 scheduled jobs?")
    expect(dialog).to_be_visible()
    web.inspector.run_now("job-1")
    dialog.get_by_role("button", name="Cancel 3 jobs").click()

    expect(page.get_by_text("Cancelled 2 jobs; 1 had come due already, or was not there.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)
    assert path_of(page) == "/scheduled"
    assert eventually(lambda: [row["id"] for row in web.inspector.jobs("mail")] == ["job-1"])


def test_the_list_renews_itself_and_shows_both_kinds_of_times(web: Web, open_page: Open) -> None:
    schedule(web.client, due("later", 2.5 * DAY))
    page = open_page("/scheduled")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("cell", name="in 2 d")).to_be_visible()
    page.keyboard.press("t")
    expect(page.get_by_role("cell", name=re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$")).last).to_be_visible()

    schedule(web.client, due("sooner", 3_600))
    # A listing is shown for ten times as long as it took to read, which is long on a busy machine.
    expect(page.locator("tbody tr")).to_have_count(2)
    lead(page, "r", "/retries")
    expect(page.get_by_text("No job waits for a retry.")).to_be_visible()


def test_a_retry_is_read_and_given_up_without_script(web: Web, open_page: Open) -> None:
    schedule(web.client, retrying("r-1", 3_600, times=3), retrying("r-2", 3_700))
    page = open_page("/retries", java_script_enabled=False)

    page.locator("summary", has_text="try 3").click()
    expect(page.get_by_text("KeyError try 2")).to_be_visible()
    page.get_by_role("button", name="Retry now: r-2").click()
    expect(page.get_by_text("Enqueued 1 job.")).to_be_visible()
    page.get_by_role("link", name="Give up r-1").click()
    page.wait_for_url("**/retries/confirm?*")
    page.get_by_role("button", name="Give up 1 job").click()
    expect(page.get_by_text("Gave up 1 job.")).to_be_visible()

    [failed] = web.inspector.failed().rows
    assert [one["message"] for one in failed["attempts"]] == ["try 1", "try 2", "try 3"]
    assert eventually(lambda: [row["id"] for row in web.inspector.jobs("mail")] == ["r-2"])


def test_a_job_is_moved_on_its_own_page(web: Web, open_page: Open) -> None:
    schedule(web.client, due("job-1", 3_600))
    page = open_page("/jobs/job-1")

    page.get_by_role("button", name="Move", exact=True).click()
    page.get_by_role("dialog", name="Move this job?").get_by_label("New time").fill("3d")
    page.get_by_role("button", name="Move 1 job").click()

    expect(page.get_by_text("Moved 1 job.")).to_be_visible()
    expect(page.locator(".facts").get_by_text("in 2 d")).to_be_visible()


def test_a_recurring_job_is_added_and_its_mistakes_are_told_in_the_form(web: Web, open_page: Open) -> None:
    page = open_page("/recurring")
    page.get_by_role("button", name="Add a recurring job").click()
    dialog = page.get_by_role("dialog", name="Add a recurring job")
    dialog.get_by_label("Name", exact=True).fill("nightly")
    dialog.get_by_label("Job", exact=True).fill("shop.sweep")
    dialog.get_by_label("Cron").fill("99 3 * * *")
    dialog.get_by_role("button", name="Add", exact=True).click()

    expect(page.get_by_role("alert")).to_contain_text("cron='99 3 * * *'")
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("nightly")
    dialog.get_by_label("Cron").fill("0 3 * * *")
    dialog.get_by_role("button", name="Add", exact=True).click()

    expect(page.get_by_text("Added nightly.")).to_be_visible()
    page.get_by_role("button", name="Disable nightly").click()
    expect(page.get_by_text("disabled", exact=True)).to_be_visible()
    page.get_by_role("button", name="Remove nightly").click()
    page.get_by_role("dialog", name="Remove nightly?").get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_text("There is no recurring job.")).to_be_visible()
    assert path_of(page) == "/recurring"
