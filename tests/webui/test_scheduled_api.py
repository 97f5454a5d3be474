"""Scheduled jobs and retries in the API, on each broker."""

import json
import logging
import time
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from palermo.core.times import parse_instant
from palermo.core.topology import FAILED_QUEUE
from palermo.settings.settings import Settings
from tests.helpers import eventually
from tests.inspector.jobs import message
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web

GONE = "fired already or not there"

#: Unix seconds of 2030-01-01T00:00Z.
YEAR = 1_893_456_000.0


def listed(web: Web, path: str = "/api/scheduled", **asked: Any) -> list[str]:
    answer = web.http.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["rows"]]


def told(web: Web, path: str, body: Any = None) -> dict[str, str]:
    """What the answer says of each id."""
    answer = web.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return {row["id"]: row["state"] for row in found.get("rows", [found])}


def test_pages_and_filters(web: Web) -> None:
    jobs = [due(str(n), 100 + 100 * n, queue="mail" if n % 2 else "slow", job=f"shop.{n}") for n in range(6)]
    schedule(web.client, *jobs, retrying("r", 5_000))

    assert listed(web, limit=3, page=2) == ["3", "4", "5"]
    assert listed(web, queue="slow") == ["0", "2", "4"]
    assert listed(web, queue="m*", job="shop.[13]") == ["1", "3"]
    assert listed(web, retries=True) == listed(web, "/api/retries", queue="mail") == ["r"]
    assert listed(web, "/api/retries", job="none") == []
    assert web.http.get("/api/scheduled?retries=false&limit=1").json()["total"] == 6


def test_each_answer_says_what_happened(web: Web) -> None:
    schedule(web.client, *(due(str(n), 100 + n) for n in range(6)))

    assert told(web, "/api/scheduled/cancel", {"ids": ["0", "1", "nowhere", "0"]}) == {
        "0": "cancelled",
        "1": "cancelled",
        "nowhere": GONE,
    }
    assert told(web, "/api/scheduled/0/cancel") == {"0": GONE}
    assert told(web, "/api/scheduled/run", {"ids": ["2"]}) == {"2": "enqueued"}
    assert told(web, "/api/scheduled/3/run") == {"3": "enqueued"}
    assert told(web, "/api/scheduled/3/cancel") == {"3": GONE}
    assert listed(web) == ["4", "5"]
    assert {row["id"] for row in web.inspector.jobs("mail")} == {"2", "3"}


def test_jobs_are_moved_to_another_time(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 200), due("c", 300))

    row = web.http.post("/api/scheduled/b/move", json={"at": "2030-01-01T12:00:00+01:00"}).json()
    assert (row["state"], row["run_at"]) == ("moved", "2030-01-01T11:00:00Z")
    assert told(web, "/api/scheduled/move", {"ids": ["a"], "delay": 1_000}) == {"a": "moved"}
    assert told(web, "/api/scheduled/c/move", {"at": time.time() - 5}) == {"c": "enqueued"}

    assert listed(web) == ["a", "b"]


def test_all_that_a_filter_matches_are_changed(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 100, queue="slow"), retrying("r", 100), due("c", 100))

    assert told(web, "/api/scheduled/cancel", {"filter": {"queue": "mail", "retries": False}}) == {
        "a": "cancelled",
        "c": "cancelled",
    }
    assert told(web, "/api/scheduled/run", {"filter": {}}) == {"b": "enqueued", "r": "enqueued"}
    assert listed(web) == []


def test_retries_are_run_now_or_given_up_and_nothing_else_is(web: Web) -> None:
    schedule(web.client, due("plain", 100), *(retrying(str(n), 100 + n, times=3) for n in range(4)))

    assert told(web, "/api/retries/run", {"ids": ["0", "plain"]}) == {"0": "enqueued", "plain": GONE}
    assert told(web, "/api/retries/1/run") == {"1": "enqueued"}
    assert told(web, "/api/retries/2/give-up") == {"2": "failed"}
    assert told(web, "/api/retries/give-up", {"filter": {}}) == {"3": "failed"}

    assert listed(web) == ["plain"]
    failed = {row["id"]: row for row in web.inspector.failed()}
    assert sorted(failed) == ["2", "3"]
    assert [one["message"] for one in failed["2"]["attempts"]] == ["try 1", "try 2", "try 3"]
    assert (failed["2"]["retries"], failed["2"]["error"]["message"]) == (2, "try 3")


def test_failed_jobs_of_each_queue_apart_are_so_when_given_up_too(settings: Settings, serve: Serve) -> None:
    web = serve(replace(settings, failed_per_queue=True))
    schedule(web.client, retrying("1", 100))

    assert told(web, "/api/retries/1/give-up") == {"1": "failed"}

    assert web.inspector.size(f"{FAILED_QUEUE}:mail") == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/scheduled?limit=0", None, 422),
        ("GET", "/api/scheduled?page=0", None, 422),
        ("GET", "/api/scheduled?page=1000000&limit=500", None, 422),
        ("GET", "/api/scheduled?retries=perhaps", None, 422),
        ("GET", "/api/scheduled?queue=%00%ed%a0%80", None, 200),
        ("GET", "/api/scheduled/nowhere", None, 404),
        ("POST", "/api/scheduled/nowhere/cancel", None, 200),
        ("POST", "/api/scheduled/cancel", {}, 422),
        ("POST", "/api/scheduled/cancel", {"ids": ["1"], "filter": {}}, 422),
        ("POST", "/api/scheduled/cancel", {"filter": {"quee": "mail"}}, 422),
        ("POST", "/api/scheduled/cancel", {"ids": [""]}, 422),
        ("POST", "/api/scheduled/cancel", {"ids": ["\ud800"]}, 422),
        ("POST", "/api/scheduled/cancel", {"ids": ["x"] * 10_001}, 422),
        ("POST", "/api/scheduled/cancel", {"filter": {"queue": "\ud800"}}, 422),
        ("POST", "/api/scheduled/1/move", {}, 422),
        ("POST", "/api/scheduled/1/move", {"at": "2030-01-01T00:00Z", "delay": 1}, 422),
        ("POST", "/api/scheduled/1/move", {"at": "2030-01-01T00:00"}, 422),
        ("POST", "/api/scheduled/1/move", {"at": "tomorrow"}, 422),
        ("POST", "/api/scheduled/1/move", {"at": 1e300}, 422),
        ("POST", "/api/scheduled/1/move", {"delay": -1}, 422),
        ("POST", "/api/scheduled/move", {"ids": ["1"]}, 422),
        ("POST", "/api/scheduled/1/move", {"later": 5, "delay": 5}, 422),
        ("POST", "/api/scheduled/1/move", {"later": -5}, 422),
        ("POST", "/api/scheduled/move", {"filter": {"due_from": "soon"}, "later": 5}, 422),
        ("POST", "/api/retries/give-up", {"filter": {"retries": False}}, 422),
    ],
)
def test_what_cannot_be_is_answered_so(shared_web: Web, method: str, path: str, body: Any, status: int) -> None:
    content = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"content-type": "application/json"}

    answer = shared_web.http.request(method, path, content=content, headers=headers)

    assert answer.status_code == status, answer.text


def test_secrets_are_hidden_here_too(web: Web) -> None:
    body = b'{"args": [1], "kwargs": {"password": "hunter2", "user": "ann"}}'
    schedule(web.client, due("a/b", 100, body=body, arguments="both"), retrying("r", 100, body=body, arguments="both"))
    id = quote("a/b", safe="")

    for path in ("/api/scheduled", f"/api/scheduled/{id}", "/api/retries", "/scheduled", "/retries", f"/jobs/{id}"):
        assert "hunter2" not in web.http.get(path).text, path
    assert web.http.get(f"/api/scheduled/{id}").json()["kwargs"]["user"] == "ann"


def test_what_is_done_is_written_down(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    schedule(web.client, due("1", 100), retrying("2", 100))

    with caplog.at_level(logging.INFO, logger="palermo.audit"):
        told(web, "/api/scheduled/cancel", {"ids": ["1", "nowhere"]})
        told(web, "/api/retries/give-up", {"filter": {"queue": "mail"}})

    assert "cancel scheduled by=local role=admin from=127.0.0.1 of=1, nowhere to=- jobs=1 gone=1" in caplog.messages
    assert "of=retries with queue=mail to=- jobs=1 gone=0" in caplog.text


def test_what_comes_due_while_it_is_cancelled_runs_or_is_cancelled(web: Web) -> None:
    """Exactly one of both, and the answer says which. The client of the test keeps the time."""
    jobs = [due(str(n), 0.3 + n * 0.05) for n in range(20)]
    schedule(web.client, message("plain"), *jobs)
    keeping = web.client.run(_keep)

    states = []
    for job in jobs:
        assert job.run_at is not None
        # Some shortly before they are due, some after.
        cancel_at = job.run_at + (int(job.id) % 5 - 2) * 0.01
        eventually(lambda cancel_at=cancel_at: time.time() >= cancel_at, every=0.001)  # type: ignore[misc]
        states.append(told(web, f"/api/scheduled/{job.id}/cancel")[job.id])
    fired = [str(n) for n, state in enumerate(states) if state == GONE]

    eventually(lambda: sorted(row["id"] for row in web.inspector.jobs("mail")) == sorted([*fired, "plain"]))
    assert set(states) <= {"cancelled", GONE}
    web.client.run(lambda _: keeping())


async def _keep(broker: Any) -> Any:
    import asyncio

    task = asyncio.ensure_future(broker.run_scheduler())

    async def stop() -> None:
        task.cancel()
        await asyncio.wait({task})

    return stop


def test_jobs_of_a_stretch_of_time_are_moved_each_from_its_own_time(web: Web) -> None:
    schedule(web.client, *(due(f"job-{hour}", YEAR + hour * 3_600 - time.time()) for hour in range(4)))
    stretch: dict[str, Any] = {"due_from": "2030-01-01T00:30Z", "due_until": "2030-01-01T02:30Z"}

    assert listed(web, **stretch) == ["job-1", "job-2"]
    moved = told(web, "/api/scheduled/move", {"filter": stretch, "later": 7_200})

    assert moved == {"job-1": "moved", "job-2": "moved"}
    rows = web.http.get("/api/scheduled").json()["rows"]
    hours = {row["id"]: round((parse_instant(row["run_at"]) - YEAR) / 3_600) for row in rows}
    assert hours == {"job-0": 0, "job-1": 3, "job-2": 4, "job-3": 3}
    assert told(web, "/api/scheduled/job-0/move", {"later": 5}) == {"job-0": "moved"}
    assert told(web, "/api/scheduled/cancel", {"filter": {"due_until": YEAR + 60}}) == {"job-0": "cancelled"}
    assert listed(web, "/api/retries", **stretch) == []
