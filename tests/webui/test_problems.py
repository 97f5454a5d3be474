"""The page and the API of what is wrong at this moment, on each broker."""

import html
import signal
import time
from typing import Any

import pytest

from palermo.inspector.doctor import examine
from palermo.settings.settings import Settings
from palermo.webui.state.live_state import OldestJobs
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import write
from tests.inspector.jobs import message, publish
from tests.webui.conftest import Serve
from tests.webui.server import Web


def test_a_queue_without_a_worker_is_a_problem_everywhere(web: Web) -> None:
    assert "Nothing is wrong" in web.http.get("/problems").text
    publish(web.client, message("1"), message("2"))

    eventually(lambda: "2 jobs wait, and no worker takes jobs from it" in web.http.get("/problems").text)

    page = web.http.get("/problems").text
    assert "<code>palermo worker MODULE -q mail</code>" in page
    assert 'href="/queues/mail">Queue mail</a>' in page
    [row] = web.http.get("/api/problems").json()["rows"]
    assert (row["kind"], row["names"], row["check"], row["level"]) == ("unserved", ["mail"], "queue mail", "warning")
    assert row["text"] in [finding.text for finding in examine(web.client, [])]
    eventually(lambda: "1 problem now" in web.http.get("/").text)
    assert 'id="nav-problems">1</span>' in web.http.get("/").text


def test_a_queue_whose_only_worker_is_quiet_is_a_problem_on_all_pages(web: Web, rig: Rig) -> None:
    worker = rig.worker("-q", "mail")
    eventually(lambda: rig.workers() != [])
    worker.send(signal.SIGTSTP)
    eventually(lambda: [row["state"] for row in rig.workers()] == ["quiet"])
    publish(web.client, message("1"), message("2"))

    def told() -> list[dict[str, Any]]:
        return [row for row in web.http.get("/api/problems").json()["rows"] if row["kind"] == "resting"]

    [problem] = eventually(told)
    assert problem["text"] == f"2 jobs wait, and no worker takes them: {rig.only_worker()['id']} is quiet"
    assert "workers take no jobs</span>" in web.http.get("/queues").text
    assert problem["text"] in html.unescape(web.http.get("/problems").text)
    findings = [finding.text for finding in examine(web.client, [])]
    assert problem["text"] in findings
    assert f"1 worker, and all answer; taking no jobs: {rig.only_worker()['id']} is quiet" in findings


def test_many_queues_without_a_worker_are_one_problem(web: Web) -> None:
    names = sorted(f"region-{nth}" for nth in range(12))
    publish(web.client, *(message(name, queue=name) for name in names))

    eventually(lambda: "in 12 queues that" in web.http.get("/problems").text)

    page = web.http.get("/problems").text
    assert page.count("that no worker serves") == 1
    assert 'href="/queues">Queues</a>' in page
    answer = web.http.get("/api/problems").json()
    assert (answer["total"], answer["rows"][0]["names"]) == (1, names)
    eventually(lambda: "1 problem now" in web.http.get("/").text)


def test_a_job_that_fails_often_and_a_pause_lead_to_the_pages_that_help(web: Web) -> None:
    publish(web.client, message("1"))
    web.inspector.queues.pause("mail")
    counts = {"queue": "mail", "job": "shop.send", "succeeded": 20, "failed": 5}
    write(web.client, [{"kind": "counts", "at": time.time(), **counts}])

    eventually(lambda: "5 of 25 runs" in web.http.get("/problems").text)

    page = web.http.get("/problems").text
    assert "paused, and 1 job waits in it" in page
    assert 'href="/failures?job=shop.send&amp;since=15m"' in page


def test_read_only_pages_do_not_store_a_job_to_examine_the_broker(settings: Settings, serve: Serve) -> None:
    page = serve(settings, read_only=True).http.get("/problems").text

    assert "the broker itself is not examined" in page
    assert "found nothing wrong" not in page


def test_the_navigation_counts_without_asking_the_broker(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(web.client, message("1"))
    web.http.get("/problems")
    monkeypatch.setattr(OldestJobs, "of", lambda *given: pytest.fail("a queue was read"))

    eventually(lambda: 'nav-problems">1<' in web.http.get("/audit").text)
