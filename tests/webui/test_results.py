"""Pages and API of what a job tells while it runs, how it stands, and what it returned."""

import signal
import time
from typing import Any

import pytest

from palermo.core.journal_records import encode, encode_record
from palermo.inspector.doctor import examine
from palermo.jobs.redaction import MASK
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.webui.server import Web


def write(web: Web, id: str, kind: str = "succeeded", **more: Any) -> None:
    record = {"kind": kind, "at": time.time(), "id": id, "job": "shop.resize", "queue": "jobs", **more}
    web.client.run(lambda broker: broker.journal.append(encode("pid:1@h", [encode_record(record)])))


def test_what_a_job_tells_is_on_its_page_and_its_workers(web: Web, rig: Rig) -> None:
    rig.worker("--log-level", "warning", modules=("crew_results",))
    job = rig.client.enqueue("crew_results.tells", [str(rig.gate)], {})

    def told() -> str | None:
        page: str = web.http.get(f"/jobs/{job.id}").text
        # The journal may tell of its lines before its worker is asked again.
        return page if "begun\nand waiting" in page and 'value="0.25"' in page else None

    page = eventually(told) or ""
    assert "25% one of four" in page

    # A worker that does not run for a second is not seen at that moment.
    def seen() -> bool:
        for path in ("/workers", "/", "/queues/jobs"):
            assert "25% one of four" in web.http.get(path).text
        (worker,) = web.http.get("/api/workers").json()["rows"] or [{"jobs": []}]
        told = [(running["progress"], running["text"], running["line"]) for running in worker["jobs"]]
        assert told == [(0.25, "one of four", "and waiting")]
        status = web.http.get(f"/api/jobs/{job.id}/status").json()
        assert (status["state"], status["progress"], status["text"]) == ("working", 0.25, "one of four")
        early = web.http.get(f"/api/jobs/{job.id}/result")
        assert (early.status_code, early.json()["error"]) == (409, f"job {job.id} is working, and has no result yet.")
        return True

    eventually(seen)
    rig.open_gate()

    assert job.result(60) == "told"
    eventually(lambda: "&#34;told&#34;" in web.http.get(f"/jobs/{job.id}").text)
    assert web.http.get(f"/api/jobs/{job.id}/result").json() == {
        "id": job.id,
        "job": "crew_results.tells",
        "result": "told",
    }


def test_the_arguments_of_a_running_job_are_shown_everywhere_and_redacted(web: Web, rig: Rig) -> None:
    rig.worker("--log-level", "warning")
    args = [str(rig.notes_path), str(rig.gate), {"password": "hunter2", "to": "anna"}]
    id = rig.client.enqueue("crew.hold", args, {}).id
    shown = [*args[:2], {"password": MASK, "to": "anna"}]

    def seen() -> bool:
        (worker,) = web.http.get("/api/workers").json()["rows"] or [{"id": "", "jobs": []}]
        assert [job["args"] for job in worker["jobs"]] == [shown]
        for path in ("/workers", "/", "/queues/jobs", f"/jobs/{id}", f"/workers/{worker['id']}"):
            page = web.http.get(path).text
            assert str(rig.notes_path)[:20] in page, path
            assert "hunter2" not in page, path
        for path in (f"/api/jobs/{id}", f"/api/jobs/{id}/status", f"/api/workers/{worker['id']}"):
            told = web.http.get(path).json()
            assert (told["jobs"][0] if "jobs" in told else told)["args"] == shown, path
        return True

    eventually(seen)
    rig.open_gate()
    eventually(lambda: not any(row["jobs"] for row in rig.workers()))


def test_a_worker_that_is_stopped_is_on_the_pages_with_its_job(web: Web, rig: Rig) -> None:
    process = rig.worker("--log-level", "warning")
    id = rig.hold()
    eventually(lambda: any(row["jobs"] for row in web.http.get("/api/workers").json()["rows"]))
    rig.freeze(process)

    def shown() -> bool:
        (worker,) = web.http.get("/api/workers").json()["rows"] or [{"answers": True, "state": "", "jobs": []}]
        assert (worker["answers"], worker["state"], [job["id"] for job in worker["jobs"]]) == (False, "silent", [id])
        for path in ("/", "/workers", "/queues/jobs"):
            page = web.http.get(path).text
            assert "1 worker does not answer" in page, path
            assert id[:8] in page, path
        assert "It does not answer" in web.http.get(f"/workers/{worker['id']}").text
        assert "It does not answer" in web.http.get(f"/jobs/{id}").text
        return True

    eventually(shown)
    process.send(signal.SIGCONT)
    eventually(lambda: "does not answer" not in web.http.get("/workers").text)
    rig.open_gate()


@pytest.mark.parametrize("queues", ["region-*", "region-1:5,jobs:1", "*,!jobs"])
def test_a_worker_of_a_pattern_or_weight_is_on_the_queues_page(web: Web, rig: Rig, queues: str) -> None:
    web.client.enqueue("shop.mail", queue="region-1")
    rig.worker("--log-level", "warning", "-q", queues)

    def shown() -> bool:
        page = web.http.get("/queues/region-1").text
        return "1 worker serves it" in page and "No worker serves this queue." not in page

    eventually(shown)


def test_what_is_not_known_of_a_stopped_worker_is_no_number_on_the_pages(web: Web, rig: Rig) -> None:
    process = rig.worker("--log-level", "warning")
    rig.ready(process)
    web.client.enqueue("shop.mail", queue="mail")
    rig.freeze(process)

    def stopped() -> list[dict[str, Any]]:
        return [row for row in web.http.get("/api/workers").json()["rows"] if not row["answers"]]

    eventually(stopped)

    def shown() -> bool:
        found = stopped()
        assert found
        (worker,) = found
        known = worker["pid"] is not None
        assert [worker[name] for name in ("slots", "processed", "failed")] == ([1, 0, 0] if known else [None] * 3)
        page, queue = web.http.get("/workers").text, web.http.get("/queues/mail").text
        assert ("nothing (1 slot)" if known else "not known") in page
        assert f'data-label="processed">{"0" if known else "–"}<' in page
        assert ("1 worker does not answer" in queue) is not known
        assert ("No worker serves this queue." if known else "No worker that answers serves this queue.") in queue
        return True

    eventually(shown)

    def advised() -> bool:
        texts = [each.text for each in examine(web.client, []) if each.check == "queue mail"]
        assert "1 job waits, and no worker that answers takes jobs from it" in texts
        return True

    eventually(advised)


def test_a_result_is_shown_as_json_and_redacted(web: Web) -> None:
    text = '{"name": "<b>", "password": "hunter2", "when": {"$palermo": "date", "value": "2026-01-02"}}'
    write(web, "kept", result={"content_type": "application/json", "text": text})

    shown = web.http.get("/api/jobs/kept/result").json()["result"]

    assert shown == {"name": "<b>", "password": MASK, "when": "2026-01-02"}
    page = web.http.get("/jobs/kept?result=1").text
    assert "&lt;b&gt;" in page
    assert "hunter2" not in page


@pytest.mark.parametrize(
    ("kind", "more", "status", "why"),
    [
        ("failed", {"error": "ValueError", "message": "no"}, 409, "job x failed: ValueError: no"),
        ("succeeded", {"refused": "the result is too large"}, 409, "job x is done, and the result is too large"),
        ("succeeded", {}, 409, "job x is done, and did not keep its result"),
        ("succeeded", {"skipped": True}, 200, ""),
        ("started", {}, 404, "job x: it does not wait in a queue"),
    ],
)
def test_why_there_is_no_result_is_said(web: Web, kind: str, more: dict[str, Any], status: int, why: str) -> None:
    id = f"x-{kind}-{len(more)}-{'-'.join(more)}"
    write(web, id, kind, **more)

    answer = web.http.get(f"/api/jobs/{id}/result")

    assert answer.status_code == status
    assert why in answer.json().get("error", "").replace(id, "x")
    if why:
        assert why.partition(":")[0].replace("job x", f"job {id}") in web.http.get(f"/jobs/{id}?result=1").text


def test_the_status_of_what_nobody_knows_is_unknown_and_why(web: Web) -> None:
    status = web.http.get("/api/jobs/nobody/status").json()

    assert status["state"] == "unknown"
    assert "The journal has no record of it either: check the id." in status["reason"]
