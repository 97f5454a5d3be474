"""Pages and API of what a job tells while it runs, how it stands, and what it returned."""

import signal
import time

import pytest

from palermo.inspector.doctor import examine
from palermo.jobs.redaction import MASK
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import ended, write
from tests.webui.server import Web


@pytest.mark.slow
def test_what_a_job_tells_is_on_its_page_and_its_workers(web: Web, rig: Rig) -> None:
    rig.worker("--log-level", "warning", modules=("crew_results",))
    job = rig.client.enqueue("crew_results.tells", [str(rig.gate)], {})

    # A worker that does not run for a second is not seen at that moment.
    def seen() -> bool:
        page = web.http.get(f"/jobs/{job.id}").text
        # The journal may tell of its lines before its worker is asked again.
        assert ("begun\nand waiting" in page, 'value="0.25"' in page) == (True, True)
        for path in (f"/jobs/{job.id}", "/workers", "/", "/queues/jobs", "/running", "/running?filter=queue:jobs"):
            assert "25% one of four" in web.http.get(path).text
        assert "No job is running." in web.http.get("/running?filter=queue:mail").text
        (worker,) = web.api("workers")["rows"] or [{"jobs": []}]
        told = [(running["progress"], running["text"], running["line"]) for running in worker["jobs"]]
        assert told == [(0.25, "one of four", "and waiting")]
        status = web.api(f"jobs/{job.id}/status")
        assert (status["state"], status["progress"], status["text"]) == ("working", 0.25, "one of four")
        early = web.http.get(f"/api/jobs/{job.id}/result")
        assert (early.status_code, early.json()["error"]) == (409, f"job {job.id} is working, and has no result yet.")
        return True

    eventually(seen)
    rig.open_gate()

    assert job.result(60) == "told"
    eventually(lambda: "&#34;told&#34;" in web.http.get(f"/jobs/{job.id}").text)
    assert web.api(f"jobs/{job.id}/result") == {"id": job.id, "job": "crew_results.tells", "result": "told"}


@pytest.mark.slow
def test_a_running_job_and_its_stopped_worker_are_on_all_pages(web: Web, rig: Rig) -> None:
    process = rig.worker("--log-level", "warning")
    args = [str(rig.notes_path), str(rig.gate), {"password": "hunter2", "to": "anna"}]
    id = rig.enqueue("hold", *args)
    shown = [*args[:2], {"password": MASK, "to": "anna"}]

    def runs() -> bool:
        assert "No job is running." in web.http.get("/running?filter=queue:mail").text
        (worker,) = web.api("workers")["rows"] or [{"id": "", "jobs": []}]
        assert [job["args"] for job in worker["jobs"]] == [shown]
        for path in ("/workers", "/", "/queues/jobs", f"/jobs/{id}", f"/workers/{worker['id']}"):
            page = web.http.get(path).text
            assert str(rig.notes_path)[:20] in page, path
            assert "hunter2" not in page, path
        for path in (f"jobs/{id}", f"jobs/{id}/status", f"workers/{worker['id']}"):
            told = web.api(path)
            assert (told["jobs"][0] if "jobs" in told else told)["args"] == shown, path
        return True

    def is_silent() -> bool:
        assert "No job is running." in web.http.get("/running?filter=queue:mail").text
        (worker,) = web.api("workers")["rows"] or [{"answers": True, "state": "", "jobs": []}]
        assert (worker["answers"], worker["state"], [job["id"] for job in worker["jobs"]]) == (False, "silent", [id])
        for path in ("/", "/workers", "/queues/jobs"):
            page = web.http.get(path).text
            assert ("1 worker does not answer" in page, id[:8] in page) == (True, True), path
        for path in (f"/workers/{worker['id']}", f"/jobs/{id}"):
            assert "It does not answer" in web.http.get(path).text
        texts = [each.text for each in examine(web.client, []) if each.check == "queue mail"]
        assert "1 job waits, and no worker that answers takes jobs from it" in texts
        return True

    eventually(runs)
    web.client.enqueue("shop.mail", queue="mail")
    rig.freeze(process)
    eventually(is_silent)
    process.send(signal.SIGCONT)
    eventually(lambda: "worker does not answer" not in web.http.get("/workers").text)
    rig.open_gate()
    eventually(lambda: not any(row["jobs"] for row in rig.workers()))


def test_a_result_is_shown_redacted_and_why_there_is_none(web: Web) -> None:
    text = '{"name": "<b>", "password": "hunter2", "when": {"$palermo": "date", "value": "2026-01-02"}}'
    write(web.client, [ended("kept", at=time.time(), result={"content_type": "application/json", "text": text})])
    assert web.api("jobs/kept/result")["result"] == {"name": "<b>", "password": MASK, "when": "2026-01-02"}
    page = web.http.get("/jobs/kept?result=1").text
    assert ("&lt;b&gt;" in page, "hunter2" in page) == (True, False)
    lost = "is done, but its result was not kept"
    for id, kind, more, status, why in (
        ("a", "failed", {"error": "ValueError", "message": "no"}, 409, "job a failed: ValueError: no"),
        ("b", "succeeded", {"refused": "it is too large"}, 409, f"job b {lost}: it is too large"),
        ("c", "succeeded", {}, 409, f"job c {lost}"),
        ("d", "succeeded", {"skipped": True}, 200, ""),
        ("e", "started", {}, 404, "job e: it is not waiting, scheduled, running or failed"),
    ):
        write(web.client, [ended(id, kind, at=time.time(), **more)])

        answer = web.http.get(f"/api/jobs/{id}/result")

        assert (answer.status_code, why in answer.json().get("error", "")) == (status, True), id
        assert why.partition(":")[0] in web.http.get(f"/jobs/{id}?result=1").text
