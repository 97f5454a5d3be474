"""A worker that tells Prometheus of itself."""

import re
import socket

import httpx

from palermo.metrics.catalogue import WORKER
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.metrics.scraping import Scraped

TOKEN = "a-token-for-prometheus"


def scrape(url: str) -> Scraped:
    answer = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    assert answer.status_code == 200
    return Scraped(answer.text)


def test_a_worker_counts_what_its_jobs_do_at_every_level_of_the_journal(rig: Rig) -> None:
    for number in range(20):
        rig.enqueue("note", str(rig.notes_path), str(number))
    for _ in range(3):
        rig.enqueue("raises", "no")
    worker = rig.worker(
        *("--metrics-port", "0", "-c", "2"), PALERMO_METRICS_TOKEN=TOKEN, PALERMO_JOURNAL="off", PALERMO_RELEASE="v7"
    )
    [url] = eventually(lambda: re.findall(r"metrics served url=(\S+)", worker.log))
    jobs = {"queue": "jobs", "job_name": "crew.note"}

    eventually(lambda: scrape(url).value("palermo_worker_jobs_processed_total", outcome="succeeded", **jobs) == 20)
    failed = {"queue": "jobs", "job_name": "crew.raises", "outcome": "failed"}
    eventually(lambda: scrape(url).value("palermo_worker_jobs_processed_total", **failed) == 3)
    rig.hold()
    eventually(lambda: scrape(url).value("palermo_worker_slots_busy") == 1)
    found = scrape(url)

    assert found.value("palermo_worker_job_run_seconds_count", **jobs) == 20
    assert found.value("palermo_worker_job_wait_seconds_count", queue="jobs") == 23
    assert found.value("palermo_worker_slots") == 2
    assert found.value("palermo_worker_broker_up") == 1
    assert found.value("palermo_worker_state", state="working") == 1
    assert {name for name in found.names if name.startswith("palermo_worker_info")}
    assert any(dict(labels).get("release") == "v7" for name, labels in found.samples if name == "palermo_worker_info")
    assert {metric.name.removesuffix("_total") for metric in WORKER} <= set(found.families)
    assert found.value("process_cpu_seconds_total")
    assert httpx.get(url, timeout=60).status_code == 401
    assert TOKEN not in worker.log
    rig.open_gate()


def test_a_port_that_is_taken_is_said_before_anything_is_started(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        worker = rig.worker("--metrics-port", str(other.getsockname()[1]))

        assert worker.wait() == 2
        assert "Each worker on a machine needs its own port" in worker.log
