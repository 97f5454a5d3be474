"""The pages of the original, Resque and Sidekiq, and ours: P14 to P19, R9, K4, asked over HTTP.

Of K4 the pages Retries and Scheduled are in test_web_ahead.py.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import APIRoute

from palermo.webui import pages
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.webui.server import Web, answer_at_the_end


@pytest.fixture
def web(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """The pages of the place's broker."""
    answer_at_the_end(monkeypatch)
    with Web(rig.client.settings) as web:
        yield web


@pytest.fixture
def rabbitmq_web(rabbitmq_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    answer_at_the_end(monkeypatch)
    with Web(rabbitmq_rig.client.settings) as web:
        yield web


def shown(web: Web, path: str) -> str:
    """What a page says, without markup and as one line."""
    answer = web.http.get(path)
    assert answer.status_code == 200, f"{path}: {answer.status_code}"
    text = re.sub(r"<[^>]+>", " ", answer.text)
    return " ".join(text.replace("&#34;", '"').replace("&#39;", "'").split())


def confirmed(web: Web, path: str) -> str:
    """The page that follows when what this page asks is confirmed."""
    page = web.http.get(path).text
    form = page[page.index('action="/failures/act"') :].partition("</form>")[0]
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form):
        fields.setdefault(name, []).append(value)
    return web.http.post("/failures/act", data=fields, follow_redirects=True).text


def rows(web: Web, path: str) -> list[dict[str, Any]]:
    return web.http.get(path).json()["rows"]  # type: ignore[no-any-return]


def test_P14_overview_has_queues_with_failed_apart_and_workers_with_what_they_do(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker("-q", "never-used"))
    idle = rig.only_worker()
    rig.ready(rig.worker())
    rig.enqueue("hold", "one")
    rig.enqueue("note", "two")
    rig.enqueue("fail", "three", queue="elsewhere")
    rig.burst("-q", "elsewhere")
    rig.await_lines(1)
    [worker] = eventually(lambda: [row for row in rig.workers() if row["id"] != idle["id"]])

    def whole() -> str:
        text = shown(web, "/")
        assert "Where Queues Worker State Working on" in text
        assert f"{worker['host']} jobs , mail {worker['id']} working shop.hold" in text
        assert f"{idle['host']} never-used {idle['id']} idle nothing (1 slot)" in text
        for said in ("Queue Waiting In progress", "jobs 1 1", "failed 1", "shop.hold", worker["id"], "1 of 2 slots"):
            assert said in text
        return text

    text = eventually(whole)
    assert text.index("jobs 1 1") < text.index("failed 1")
    assert f"Palermo {web.app.version}" in text
    assert f"Connected to {web.app.state.site.connected_to}" in text
    rig.open_gate()


def test_P14_a_queue_is_read_page_by_page_and_cleared_when_that_was_confirmed(rig: Rig, web: Web) -> None:
    made = [rig.enqueue("note", f"text {number}") for number in range(30)]

    # After one look RabbitMQ may count a job less for an instant.
    text = eventually(lambda: _with(shown(web, "/queues/jobs"), "1 to 25 of 30 jobs"))
    assert "Job Arguments Id Retries Enqueued" in text
    assert "shop.note 'text 0'" in text
    eventually(lambda: _with(shown(web, "/queues/jobs?page=2"), "26 to 30 of 30 jobs"))
    job = shown(web, f"/jobs/{made[3]}?queue=jobs")
    assert all(said in job for said in (made[3], "shop.note", '"text 3"', "application/json", "Enqueued"))
    eventually(lambda: _with(shown(web, "/queues/jobs?ask=clear"), "Remove 30 jobs"))
    done = web.form("/queues/jobs?ask=clear", "/queues/jobs/purge")
    assert "Removed 30 jobs from jobs." in done.text
    assert rig.pending() == 0


def test_P14_failures_are_read_twenty_a_page_retried_one_by_one_or_all_and_cleared(rig: Rig, web: Web) -> None:
    for number in range(22):
        rig.enqueue("fail", f"wrong {number}")
    rig.burst()

    text = eventually(lambda: _with(shown(web, "/failures"), "1 to 20 of 22"))
    assert "Rows 20 50 100 Page 1 of 2" in text
    assert "1 to 22 of 22 failed jobs Rows 20 50 100" in shown(web, "/failures?limit=50")
    for said in ("shop.fail", "ValueError", "wrong 21", "jobs", "application/json", "enqueued", "Traceback", "shop.py"):
        assert said in text
    [first, *_] = rows(web, "/api/failed")
    web.form("/failures", f"/jobs/{first['id']}/requeue")
    eventually(lambda: rig.pending() == 1)
    asked = shown(web, "/failures/confirm?act=requeue&all=1")
    assert "Requeue 21 jobs" in asked
    assert "Requeued 21 jobs." in confirmed(web, "/failures/confirm?act=requeue&all=1")
    rig.burst()
    # While the pages read it, the queue seems to have fewer.
    eventually(lambda: [row["retries"] for row in rig.failed().values()] == [1] * 22)
    eventually(lambda: _with(shown(web, "/failures/confirm?act=discard&all=1"), "Discard 22 jobs"))
    assert "Discarded 22 jobs." in confirmed(web, "/failures/confirm?act=discard&all=1")
    assert rig.failed() == {}


def test_P14_workers_are_shown_by_host_with_queues_and_counts(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker("-q", "mail,jobs"))
    worker = rig.only_worker()
    told = (worker["host"], str(worker["pid"]), "mail", "jobs", "idle")

    def whole() -> bool:
        text = shown(web, "/workers")
        return all(said in text for said in told)

    eventually(whole)


def test_P15_what_the_pages_show_and_do_the_library_shows_and_does(rig: Rig, web: Web) -> None:
    rig.enqueue("fail", "wrong")
    rig.enqueue("fail", "wrong too")
    rig.burst()
    rig.enqueue("note", "waits")
    inspector = rig.inspector

    # While one of them reads a queue, it seems to have fewer jobs to the other.
    eventually(lambda: rows(web, "/api/queues") == inspector.queues_info())
    assert rows(web, "/api/workers") == inspector.workers_info()
    eventually(lambda: rows(web, "/api/queues/jobs/jobs") == inspector.jobs_in_queue("jobs").rows)
    failed = eventually(lambda: found if len(found := rows(web, "/api/failed")) == 2 else [])
    eventually(lambda: failed == inspector.failed().rows)
    inspector.retry_failed_job(failed[0]["id"])
    inspector.retry_all()
    eventually(lambda: rows(web, "/api/failed") == [])
    assert inspector.purge_queue("jobs") == 3
    eventually(lambda: rows(web, "/api/queues/jobs/jobs") == [])


@pytest.mark.usefixtures("patient")
def test_P16_workers_are_started_by_the_library_and_stopped_over_http(rig: Rig, web: Web) -> None:
    with (
        (rig.path / "log").open("ab") as log,
        rig.inspector.start_worker(["palermo.demo.jobs"], log=log) as worker,
    ):
        [row] = eventually(lambda: [row for row in rows(web, "/api/workers") if row["state"] == "idle"])
        assert row["pid"] == worker.pid

        answer = web.http.post(f"/api/workers/{quote(row['id'], safe='')}/stop")

        assert answer.json()["answered"] is True
        eventually(lambda: rows(web, "/api/workers") == [])


def test_P17_no_page_changes_loses_or_reorders_jobs(rig: Rig, web: Web) -> None:
    waiting = [rig.enqueue("note", f"{number}") for number in range(60)]
    for number in range(5):
        rig.enqueue("fail", f"{number}", queue="wrong")
    rig.burst("-q", "wrong")
    failed = eventually(lambda: found if len(found := list(rig.failed())) == 5 else [])
    paths = ["/", "/queues", "/queues/jobs", "/queues/jobs?page=2", "/queues/jobs?newest=1", "/queues/jobs?text=note"]
    paths += ["/failures", "/failures?by=groups", "/workers", "/stats.txt"]
    paths += [f"/jobs/{waiting[30]}", f"/jobs/{failed[0]}", "/api/queues/jobs/jobs", "/api/failed", "/api/queues"]

    for path in paths * 2:
        assert web.http.get(path).status_code == 200, path

    eventually(lambda: [row["id"] for row in rig.inspector.jobs("jobs", limit=100)] == waiting)
    eventually(lambda: list(rig.failed()) == failed)
    rig.burst()
    assert rig.lines() == [f"{number}" for number in range(60)]


def test_P18_every_page_works_without_the_management_plugin(rabbitmq_rig: Rig, rabbitmq_web: Web) -> None:
    # The nodes of these tests load no plugin, and of the broker's addresses the pages know AMQP's alone.
    rabbitmq_rig.enqueue("note", "x")
    rig, web = rabbitmq_rig, rabbitmq_web
    rig.ready(rig.worker("-q", "other"))

    assert "jobs no worker 1 0" in eventually(lambda: _with(shown(web, "/"), "jobs no worker 1 0"))
    pid = str(rig.only_worker()["pid"])
    eventually(lambda: _with(shown(web, "/workers"), pid))
    for path in ("/queues", "/queues/jobs", "/failures"):
        assert shown(web, path)


def test_P19_whatever_changes_something_is_a_post_with_a_token_from_our_own_pages(rig: Rig, web: Web) -> None:
    id = rig.enqueue("note", "x")
    changes = [
        route
        for router in pages.ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "POST" in route.methods
    ]
    forms = {
        route.path
        for router in pages.ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods
    }
    assert len(changes) > 10
    for route in changes:
        path = re.sub(r"{id[^}]*}", id, re.sub(r"{name[^}]*}", "jobs", getattr(route, "path")))  # noqa: B009
        path = re.sub(r"{action[^}]*}", "stop", path)

        assert web.http.get(path).status_code in (404, 405, 422) or route.path in forms, path
        assert web.http.post(path).status_code == 403, path
        stranger = {"Sec-Fetch-Site": "cross-site"}
        assert web.http.post(path, headers=stranger).status_code == 403, path
    assert [row["id"] for row in rig.inspector.jobs("jobs")] == [id]


def test_R9_resques_pages_are_there_live_and_with_both_kinds_of_times(rig: Rig, web: Web) -> None:
    rig.enqueue("fail", "x")
    rig.burst()
    rig.enqueue("note", "x")

    for path, title in (("/", "Overview"), ("/queues", "Queues"), ("/failures", "Failures"), ("/workers", "Workers")):
        page = web.http.get(path).text
        assert f"<title>{title} " in page
        assert "data-every" in page
        assert "data-times" in page
    assert 'id="working-title">Working now' in web.http.get("/").text
    times = re.findall(r'<time datetime="(\S+)" title="([^"]+)"[^>]*>([^<]+)', web.http.get("/queues/jobs").text)
    assert times
    assert all(exact and relative for _, exact, relative in times)
    with httpx.stream("GET", f"{web.url}/live?every=1", timeout=90) as stream:
        lines = stream.iter_lines()
        assert "event: hello" in (next(lines), next(lines))
        # What changes before the first look is in it.
        assert any(line.startswith(":") for line in lines)
        rig.enqueue("note", "y")
        assert next(line for line in lines if line.startswith("event:") and "hello" not in line) == "event: change"


def test_R9_stats_for_scripts_are_a_counter_a_line(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker())
    rig.enqueue("note", "x")
    rig.enqueue("fail", "x")
    rig.enqueue("hold", "held")
    rig.enqueue("note", "waits")
    rig.enqueue("note", "elsewhere", queue="a=b")
    rig.await_lines(2)

    expected = {"pending": 2, "in_progress": 1, "processed": 2, "failed": 1, "workers": 1, "working": 1}
    wanted = {f"palermo.{name}": value for name, value in expected.items()}
    wanted |= {"queues.jobs": 1, "queues.failed": 1, "queues.a%3Db": 1}

    def stats() -> dict[str, int]:
        answer = web.http.get("/stats.txt")
        assert answer.headers["content-type"].startswith("text/plain")
        return {name: int(value) for name, _, value in (line.partition("=") for line in answer.text.splitlines())}

    def as_wanted() -> bool:
        found = stats()
        assert {name: found.get(name) for name in wanted} == wanted
        return True

    eventually(as_wanted)
    rig.open_gate()


@pytest.mark.usefixtures("patient")
def test_K4_busy_workers_are_told_to_be_quiet_and_to_stop_all_at_once(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker(), rig.worker())
    rig.enqueue("hold", "held")
    rig.await_lines(1)

    page = web.form("/workers", "/workers/quiet")
    assert "Told 2 workers to take no more jobs." in page.text
    eventually(lambda: sorted(row["state"] for row in rig.workers()) == ["quiet", "quiet"])
    eventually(lambda: "shop.hold" in shown(web, "/workers"))
    assert "Told 2 workers to finish" in web.form("/workers", "/workers/stop").text
    eventually(lambda: len(rig.workers()) == 1)
    rig.open_gate()

    eventually(lambda: rig.workers() == [])
    assert rig.lines() == ["held begins", "held ends"]


def test_K4_dead_jobs_are_chosen_by_checkboxes_and_requeued_together(rig: Rig, web: Web) -> None:
    for number in range(4):
        rig.enqueue("fail", f"{number}")
    rig.burst()
    # While the pages read it, the queue seems to have fewer.
    ids = eventually(lambda: found if len(found := list(rig.failed())) == 4 else [])
    page = eventually(lambda: _with(web.http.get("/failures").text, f'name="id" value="{ids[0]}"'))
    assert page.count('type="checkbox" name="id"') == 4

    confirm = f"/failures/confirm?act=requeue&id={ids[0]}&id={ids[2]}"
    assert "Requeue 2 jobs" in shown(web, confirm)
    assert "Requeued 2 jobs." in confirmed(web, confirm)
    eventually(lambda: list(rig.failed()) == [ids[1], ids[3]])
    eventually(lambda: rig.pending() == 2)


def test_K4_metrics_are_a_chart_of_what_succeeded_and_failed(rig: Rig, web: Web) -> None:
    rig.ready(rig.worker())
    shown(web, "/")  # these pages count from the first look on
    for job in ("note", "note", "fail"):
        rig.enqueue(job, "x")
    rig.await_lines(2)

    eventually(lambda: _with(shown(web, "/"), "2 succeeded 1 failed"))

    label = re.findall(r'aria-label="(Jobs in the last ten minutes: [^"]+)"', web.http.get("/").text)
    assert label == ["Jobs in the last ten minutes: 3 processed, 1 of them failed"]


def _with(text: str, part: str) -> str:
    assert part in text
    return text
