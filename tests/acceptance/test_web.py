"""The pages beside real workers: what they know of jobs that ran while no pages did."""

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


def rows(web: Web, path: str, **query: int) -> list[dict[str, Any]]:
    return web.http.get(path, params=query).json()["rows"]  # type: ignore[no-any-return]


@pytest.mark.timeout(scaled(400, 1_800))
def test_the_history_lacks_nothing_that_ran_while_no_web_process_did(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    settings = Settings(url=rig.url, exchange=rig.exchange, journal="all", publish_timeout=60)
    rig.worker("-c", "4", "--pool", "thread", PALERMO_JOURNAL="all")

    def total(web: Web) -> int:
        """How many jobs have finished, as far as the pages' process knows."""
        answer = web.http.get("/api/history", params={"limit": 1})
        return int(answer.json()["total"]) if answer.status_code == 200 else -1

    def finished(web: Web) -> list[dict[str, Any]]:
        """All of them, page by page."""
        every = (rows(web, "/api/history", limit=500, page=page) for page in itertools.count(1))
        return [row for found in itertools.takewhile(bool, every) for row in found]

    with Client(settings) as client:
        with Web(settings) as web:
            first = [client.enqueue("shop.note", [f"{number}"]).id for number in range(3)]
            eventually(lambda: total(web) == 3)

        ids = [job.id for job in client.enqueue_many(("shop.note", (f"{number}",), {}) for number in range(JOBS))]
        bad = client.enqueue("shop.fail", ["why"]).id
        rig.await_lines(3 + JOBS, within=scaled(120, 1_200))
        eventually(lambda: rig.inspector.failed.list().total == 1)

        with Web(settings) as web, Web(settings) as other:
            eventually(lambda: total(web) == total(other) == JOBS + 4, within=scaled(60, 300))
            found = finished(web)
            assert {row["id"] for row in found} == {*first, *ids, bad}
            assert finished(other) == found
            for path in ("/api/history?state=failed", f"/api/history/{bad}", "/api/history?page=3&limit=7"):
                assert other.http.get(path).json() == web.http.get(path).json()
            kinds = [step["kind"] for step in rows(web, f"/api/history/{ids[-1]}")]
            assert (kinds[0], kinds[-1]) == ("enqueued", "succeeded")

    assert [row["id"] for row in rig.rows("history", "--state", "failed")] == [bad]
    assert rig.rows("history", "--limit", "7") == found[:7]
