"""One story of the pages and the API with a real worker, on each broker; the other tests here run on SQLite."""

from urllib.parse import quote

import pytest

from palermo.settings.settings import Settings
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.webui.scheduled_jobs import DAY
from tests.webui.server import Web

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def settings(any_settings: Settings) -> Settings:
    return any_settings


@pytest.mark.slow
def test_jobs_are_watched_and_led_from_enqueue_to_done(web: Web, rig: Rig) -> None:
    notes = str(rig.notes_path)

    # A queue without a worker: jobs wait, and all pages of it say so.
    first = web.http.post("/api/jobs", json={"job": "crew.note", "args": [notes, "first"]}).json()["id"]
    bad = rig.enqueue("raises", "no such order")
    web.page("/queues", 'href="/queues/jobs"', ">2<")
    web.page("/queues/jobs", first, bad)
    eventually(lambda: web.ids("queues/jobs/jobs") == [first, bad])
    web.page("/problems", 'href="/queues/jobs"')

    # Scheduled jobs are listed soonest first, and run, moved and cancelled by their ids.
    later = {name: rig.enqueue("note", notes, name, delay=DAY * nth) for nth, name in enumerate("abc", start=1)}
    again = rig.client.enqueue("crew.note", [notes, "d"], {}, delay=9 * DAY).id
    assert web.ids("scheduled") == [*later.values(), again]
    web.page("/scheduled", *later.values())
    web.form("/scheduled", "/scheduled/act", act="run", id=later["a"])
    web.form("/scheduled", "/scheduled/act", act="cancel", id=later["b"])
    assert web.http.post(f"/api/scheduled/{later['c']}/move", json={"delay": 20 * DAY}).json()["state"] == "moved"
    eventually(lambda: web.ids("scheduled") == [again, later["c"]])

    # A worker takes what waits; one job fails.
    web.http.post("/api/queues/jobs/pause")
    worker = rig.worker()
    rig.ready(worker)
    name = rig.only_worker()["id"]
    web.page("/workers", f"/workers/{quote(name, safe='')}")
    eventually(lambda: web.ids("workers") == [name])
    assert rig.lines() == []
    web.http.post("/api/queues/jobs/resume")
    assert sorted(rig.await_lines(2)) == ["a", "first"]
    eventually(lambda: web.ids("failed") == [bad])
    web.page("/failures", bad, "no such order")
    web.page(f"/jobs/{first}", "done")
    counted = ("processed=3", "failed=1", "workers=1", "working=0", "pending=0", "in_progress=0")
    web.page("/stats.txt", *(f"palermo.{each}\n" for each in counted), "queues.jobs=0\n", "queues.failed=1\n")

    # It is requeued from its page with right arguments, and fails again; then it is discarded.
    web.form(f"/failures/{bad}/edit", f"/failures/{bad}/edit", args='["again"]')
    web.page("/failures", bad, "again")
    eventually(lambda: [row["retries"] for row in web.http.get("/api/failed").json()["rows"]] == [1])
    assert web.http.delete(f"/api/failed/{bad}").status_code == 200
    eventually(lambda: web.ids("failed") == [])

    # What was done is written down, and the worker obeys.
    actions = {"pause", "resume", "requeue", "discard"}
    eventually(lambda: actions <= {row["action"] for row in web.http.get("/api/audit").json()["rows"]})
    orders = f"/api/workers/{quote(name, safe='')}"
    eventually(lambda: web.http.post(f"{orders}/quiet").json().get("answered"))
    eventually(lambda: web.api("workers")["rows"][0]["state"] == "quiet")
    eventually(lambda: "Thread" in web.http.post(f"{orders}/stack").json().get("text", ""))
    eventually(lambda: web.http.post(f"{orders}/stop").status_code == 200)
    assert worker.wait() == 0
    eventually(lambda: web.ids("workers") == [])
