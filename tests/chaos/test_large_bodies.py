"""Bodies of 100 MB and bodies that grow: refused to those who ask, and no worker, command or page is hurt by one."""

import gzip
from pathlib import Path

import zstandard

from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.webui.process import WebProcess

HUGE = 100_000_000

#: What a worker's processes and a command may take: two bodies, as they come and as they are worked on.
MOST_MB = 600.0

#: What `palermo web` may take: 580 as a rule, and more while two of its looks at one body meet.
MOST_MB_OF_PAGES = 900.0


def highest(pid: int) -> float:
    """The most that a process had in memory, in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")), 0.0)


def test_large_bodies_and_bombs_fail_and_the_job_behind_them_runs(rig: Rig) -> None:
    worker = rig.idle()
    rig.put("jobs", b"[" + b"1," * (HUGE // 2) + b"1]", headers={"job-class": "shop.note"}, delivery_mode=2)
    zeros = b"[" + b"0" * (4 * HUGE) + b"]"
    for encoding, bomb in (("gzip", gzip.compress(zeros)), ("zstd", zstandard.compress(zeros))):
        for _ in range(3):
            read = {"content_encoding": encoding, "content_type": "application/json"}
            rig.put("jobs", bomb, headers={"job-class": "shop.note"}, **read)

    rig.enqueue("note", "behind")

    assert rig.await_lines(1) == ["behind"]
    eventually(lambda: len(rig.failed()) == 7)
    assert worker.alive
    assert worker.log.count("INFO connected") == 1
    assert not has_traceback(worker.log)
    assert max(highest(pid) for pid in worker.tree()) < MOST_MB
    errors = [row["error"] for row in rig.failed().values()]
    assert {error["class"] for error in errors} == {"palermo.errors.BodyTooLarge"}
    assert any("100,000,003 bytes" in error["message"] for error in errors)
    assert "shop.note" in rig.palermo("failed", "list")
    assert all(len(str(row["preview"])) < 1_000 for row in rig.failed().values())


def test_commands_and_pages_show_a_body_of_100_mb_within_bounds(rig: Rig) -> None:
    body = b'["' + b"x" * HUGE + b'"]'

    def put(id: str) -> None:
        read = {"content_type": "application/json", "message_id": id, "delivery_mode": 2}
        rig.put("jobs", body, headers={"job-class": "nobody.knows"}, **read)

    rig.enqueue("note", "first")
    put("failed")
    rig.burst()
    eventually(lambda: len(rig.failed()) == 1)
    put("waiting")
    assert "nobody.knows" in rig.palermo("jobs", "jobs")
    assert "nobody.knows" in rig.palermo("failed", "list")

    environment = {"PALERMO_URL": rig.url, "PALERMO_EXCHANGE": rig.exchange, "PALERMO_PUBLISH_TIMEOUT": "25"}
    with WebProcess(rig.path, **environment) as web:
        eventually(lambda: web.http.get("/api/failed").status_code == 200)
        naming = ("/queues/jobs", "/jobs/waiting", "/jobs/failed", "/failures?filter=failed")
        for page in ("/", "/queues", "/failures", "/failures?by=groups", "/failures?filter=xxx", *naming):
            answer = web.http.get(page)
            assert (answer.status_code, len(answer.content) < 100_000) == (200, True), page
            assert page not in naming or "nobody.knows" in answer.text, page
        (waiting,) = web.http.get("/api/queues/jobs/jobs").json()["rows"]
        (failed,) = web.http.get("/api/failed").json()["rows"]
        assert (waiting["id"], waiting["args"], failed["id"], failed["args"]) == ("waiting", None, "failed", None)
        for id in ("waiting", "failed"):
            assert web.http.get(f"/api/jobs/{id}").json()["args"] is None
        json = {"Content-Type": "application/json"}
        # 202 is the answer of a discard that goes on.
        assert web.http.delete("/api/failed/failed", headers=json).status_code in (200, 202)
        eventually(lambda: not web.http.get("/api/failed").json()["rows"])
        assert web.http.post("/api/queues/jobs/purge", headers=json).json() == {"removed": 1}
        assert "request failed" not in web.log
        assert highest(web.process.pid) < MOST_MB_OF_PAGES
