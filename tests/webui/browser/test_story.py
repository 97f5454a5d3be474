"""A job's page in a browser: a job that is over is run again, and a job that waits is changed."""

import time

from playwright.sync_api import expect

from tests.helpers import eventually
from tests.history.written import ended, write
from tests.webui.browser.conftest import Open, path_of
from tests.webui.scheduled_jobs import DAY, due, schedule
from tests.webui.server import Web


def over(web: Web, id: str, **more: object) -> None:
    """A job that is done, as its worker recorded it."""
    write(web.client, [ended(id, at=time.time(), **more)])  # type: ignore[arg-type]
    eventually(lambda: web.http.get(f"/api/history/{id}").status_code == 200)


def test_a_job_that_is_done_is_run_again_by_one_click(web: Web, open_page: Open) -> None:
    over(web, "done", body='["cat.png", 640]')
    page = open_page("/jobs/done")
    expect(page.locator("#args")).to_contain_text("cat.png")

    page.get_by_role("button", name="Run again", exact=True).click()

    expect(page.get_by_text("Enqueued again, as this new job.")).to_be_visible()
    # The page renews itself, and holds the job for a moment each time.
    [row] = eventually(lambda: web.inspector.jobs("mail").rows)
    assert path_of(page) == f"/jobs/{row['id']}"
    assert row["args"] == ["cat.png", 640]
    page.get_by_role("link", name="done", exact=True).click()
    expect(page.get_by_role("link", name=row["id"])).to_be_visible()


def test_a_job_is_completed_and_run_again_without_script(web: Web, open_page: Open) -> None:
    over(web, "long", inexact="shortened", preview="'cat.png', ...", size=9_000)
    page = open_page("/jobs/long", java_script_enabled=False)
    expect(page.get_by_text("They have 9,000 bytes.")).to_be_visible()

    page.get_by_role("link", name="Edit and run again").click()
    page.get_by_label("Positional arguments").fill('["cat.png"')
    page.get_by_label("Named arguments").fill("{}")
    page.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_role("alert")).to_contain_text("are not JSON")
    expect(page.get_by_label("Positional arguments")).to_have_value('["cat.png"')
    page.get_by_label("Positional arguments").fill('["cat.png"]')
    page.get_by_role("button", name="Enqueue").click()

    expect(page.get_by_text("Enqueued again, as this new job.")).to_be_visible()
    assert eventually(lambda: [row["args"] for row in web.inspector.jobs("mail")] == [["cat.png"]])


def test_a_scheduled_job_is_changed_on_its_page(web: Web, open_page: Open) -> None:
    schedule(web.client, due("later", DAY, "old"))
    page = open_page("/jobs/later")

    page.get_by_role("link", name="Edit", exact=True).click()
    page.get_by_label("Positional arguments").fill('["new"]')
    page.get_by_role("combobox", name="Queue", exact=True).fill("slow")
    page.get_by_role("textbox", name="Time a delay from now").fill("3d")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("no worker serves queue 'slow'")).to_be_visible()
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_text("Changed 1 job.")).to_be_visible()
    expect(page.locator("#args")).to_contain_text("new")
    [row] = web.inspector.scheduled()
    assert (row["args"], row["queue"]) == (["new"], "slow")
