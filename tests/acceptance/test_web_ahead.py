"""The pages of what is to come, as Sidekiq and resque-scheduler have them: K1, K2, K4, R12, asked over HTTP."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.webui.server import Web
from tests.webui.test_scheduled_pages import confirmed, listed, shown


@pytest.fixture
def web(rig: Rig) -> Iterator[Web]:
    """The pages of the place's broker."""
    with Web(rig.client.settings) as web:
        yield web


def retry(rig: Rig, text: str) -> str:
    """A job that fails, with retries as Sidekiq has them; its id."""
    return rig.client.enqueue("shop.fail", [text], retries=3).id


def row(web: Web, path: str, id: str) -> Any:
    return next((row for row in web.http.get(path).json()["rows"] if row["id"] == id), None)


def test_K1_a_job_that_failed_is_on_the_retries_page_until_it_is_retried_or_dead(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker())
    id = retry(rig, "wrong")

    waiting = eventually(lambda: row(web, "/api/retries", id))
    text = shown(web, "/retries")
    assert all(said in text for said in ("ValueError wrong", "shop.fail", "jobs", "Retry now", "Give up"))
    wait = datetime.fromisoformat(waiting["run_at"]) - datetime.fromisoformat(waiting["failed_at"])
    assert 15 <= wait.total_seconds() <= 26  # n⁴ + 15 + rand(10 (n + 1)), with n = 0

    assert "Enqueued 1 job." in web.form("/retries", "/retries/act", act="retry", id=id).text
    again = eventually(lambda: (found := row(web, "/api/retries", id)) and found["retries"] == 2 and found)
    assert [one["attempt"] for one in again["attempts"]] == [1, 2]
    told = ("retrying", "Next try in ", "Attempts", "ValueError : wrong")
    eventually(lambda: all(said in shown(web, f"/jobs/{id}") for said in told))

    assert "Gave up 1 job." in confirmed(web, f"/retries/confirm?act=give+up&id={id}").text
    # While the pages read it, the queue seems to have fewer.
    dead = eventually(rig.failed)[id]
    assert (len(dead["attempts"]), dead["retries"]) == (2, 1)
    assert "ValueError wrong" in eventually(lambda: "shop.fail" in (said := shown(web, "/failures")) and said)


def test_K2_jobs_for_a_certain_time_and_in_bulk_are_on_the_scheduled_page(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker())
    soon = rig.client.enqueue("shop.note", ["soon"], delay=3_600).id
    exact = rig.client.enqueue("shop.note", ["exact"], run_at=datetime.now(UTC) + timedelta(days=400)).id
    rig.client.enqueue_many([("shop.note", (f"{n}",), {}) for n in range(60)], delay=7_200)

    eventually(lambda: "Scheduled 62" in shown(web, "/scheduled"))
    assert listed(web, "/scheduled")[0] == soon
    assert listed(web, "/scheduled?page=2")[-1] == exact
    text = shown(web, "/scheduled")
    assert all(said in text for said in ("Scheduled 62", "shop.note", "'soon'", "1 to 50 of 62 scheduled jobs"))
    assert "Enqueued 1 job." in web.form("/scheduled", "/scheduled/act", act="run", id=soon).text

    assert rig.await_lines(1) == ["soon"]
    assert "Scheduled 61" in eventually(lambda: "Scheduled 61" in (said := shown(web, "/scheduled")) and said)


def test_K4_retries_are_chosen_by_checkboxes_and_given_up_or_retried_together(rig: Rig, web: Web) -> None:
    ids = [rig.client.enqueue("shop.fail_for_long", [f"{n}"], retries=3).id for n in range(4)]
    rig.ready(rig.worker())
    eventually(lambda: web.http.get("/api/retries").json()["total"] == 4)

    assert sorted(re.findall(r'type="checkbox" name="id" value="([^"]+)"', web.http.get("/retries").text)) == sorted(
        ids
    )
    chosen = f"/retries/confirm?act=give+up&id={ids[0]}&id={ids[2]}"
    assert "Give up 2 jobs?" in shown(web, chosen)
    assert "Gave up 2 jobs." in confirmed(web, chosen).text
    assert "Enqueued 2 jobs." in confirmed(web, "/retries/confirm?act=retry&all=1").text

    eventually(lambda: set(rig.failed()) == {ids[0], ids[2]})
    eventually(lambda: {r["retries"] for r in web.http.get("/api/retries").json()["rows"]} == {2})


def test_K4_scheduled_jobs_are_chosen_by_checkboxes_and_cancelled_or_run_together(rig: Rig, web: Web) -> None:
    ids = [rig.client.enqueue("shop.note", [f"{n}"], delay=3_600).id for n in range(4)]
    page = web.http.get("/scheduled").text
    assert re.findall(r'type="checkbox" name="id" value="([^"]+)"', page) == ids

    assert "Cancelled 2 jobs." in confirmed(web, f"/scheduled/confirm?act=cancel&id={ids[1]}&id={ids[3]}").text
    assert "Enqueued 2 jobs." in confirmed(web, "/scheduled/confirm?act=run&all=1").text

    rig.ready(rig.worker())
    assert sorted(rig.await_lines(2)) == ["0", "2"]


def test_R12_delayed_jobs_have_a_page_by_time_queue_and_job(rig: Rig, web: Web) -> None:
    rig.client.enqueue("shop.note", ["b"], delay=7_200, queue="slow")
    rig.client.enqueue("shop.note", ["a"], delay=3_600)
    rig.client.enqueue("shop.fail", ["c"], delay=86_400)

    rows = web.http.get("/api/scheduled").json()["rows"]
    assert [each["args"] for each in rows] == [["a"], ["b"], ["c"]]
    text = shown(web, "/scheduled")
    assert text.index("'a'") < text.index("'b'") < text.index("'c'")
    assert "Scheduled 3" in text
    assert len(listed(web, "/scheduled?queue=slow")) == 1
    assert len(listed(web, "/scheduled?job=shop.n*")) == 2
    assert "Cancel 2 scheduled jobs?" in shown(web, "/scheduled/confirm?act=cancel&all=1&job=shop.note")


def test_R12_recurring_jobs_have_a_page_on_which_the_schedule_is_changed(rig: Rig, web: Web) -> None:
    form = {"name": "tick", "job": "shop.note", "args": '["ticked"]'}

    assert "Added tick." in web.form("/recurring?ask=add", "/recurring/add", every="1s", **form).text
    rig.ready(rig.worker())
    assert rig.await_lines(2)[:2] == ["ticked", "ticked"]
    text = shown(web, "/recurring")
    assert all(said in text for said in ("tick", "shop.note", "Every second", "enabled", "added at run time"))
    assert re.search(
        r'data-label="last run"><time datetime="[^"]+" title="20[^"]+ UTC">', web.http.get("/recurring").text
    )

    assert "Disabled tick" in web.form("/recurring", "/recurring/tick/disable").text
    # Behind the ticks that were fired before.
    rig.enqueue("note", "behind")
    eventually(lambda: "behind" in rig.lines())
    before = len(rig.lines())
    assert "Enqueued tick now" in web.form("/recurring", "/recurring/tick/run").text
    assert len(rig.await_lines(before + 1)) == before + 1
    assert "Removed tick." in web.form("/recurring", "/recurring/tick/remove").text
    assert "There is no recurring job." in shown(web, "/recurring")
