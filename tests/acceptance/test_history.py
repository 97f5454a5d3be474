"""History: the pages, the API and the commands show later what happened while nobody looked."""

import itertools
from typing import Any

import pytest

from palermo.client.client import Client
from palermo.settings.settings import Settings
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.scale import scaled
from tests.webui.server import Web

#: Jobs that run while no web process does.
JOBS = scaled(600, 100_000)


def told(web: Web) -> int:
    """How many jobs have finished, as the pages' process knows."""
    answer = web.http.get("/api/history", params={"limit": 1})
    return int(answer.json()["total"]) if answer.status_code == 200 else -1


def finished(web: Web) -> list[dict[str, Any]]:
    """All of them."""
    rows: list[dict[str, Any]] = []
    for page in itertools.count(1):
        found = web.http.get("/api/history", params={"limit": 500, "page": page}).json()["rows"]
        if not found:
            return rows
        rows += found
    raise AssertionError("pages have no end")


@pytest.mark.timeout(scaled(400, 1_800))
def test_nothing_is_missing_of_what_ran_while_the_web_process_was_stopped(rabbitmq_rig: Rig) -> None:
    rig, settings = (
        rabbitmq_rig,
        Settings(url=rabbitmq_rig.url, exchange=rabbitmq_rig.exchange, journal="all", publish_timeout=60),
    )
    rig.ready(rig.worker("-c", "4", "--pool", "thread", PALERMO_JOURNAL="all"))
    with Client(settings) as client:
        with Web(settings) as web:
            first = [client.enqueue("shop.note", [f"{n}"]).id for n in range(3)]
            eventually(lambda: told(web) == 3)

        calls = (("shop.note", (f"{n}",), {}) for n in range(JOBS))
        ids = [job.id for job in client.enqueue_many(calls)]
        bad = client.enqueue("shop.fail", ["why"]).id
        rig.await_lines(3 + JOBS, within=scaled(120, 1_200))
        eventually(lambda: rig.inspector.failed().total == 1)

        with Web(settings) as web, Web(settings) as other:
            eventually(lambda: told(web) == told(other) == JOBS + 4, within=scaled(60, 300))
            rows = finished(web)
            assert {row["id"] for row in rows} == {*first, *ids, bad}
            assert finished(other) == rows
            for path in ("/api/history?state=failed", f"/api/history/{bad}", "/api/history?page=3&limit=7"):
                assert other.http.get(path).json() == web.http.get(path).json()
            kinds = [step["kind"] for step in web.http.get(f"/api/history/{ids[-1]}").json()["rows"]]
            assert kinds[0] == "enqueued"
            assert kinds[-1] == "succeeded"

    assert [row["id"] for row in rig.rows("history", "--state", "failed")] == [bad]
    assert rig.rows("history", "--limit", "7") == rows[:7]
