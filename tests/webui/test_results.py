"""Pages and API of what jobs tell, return and share: results, tenants, keys of unique jobs, topics and limits."""

import asyncio
import signal
import time
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from palermo.contract.broker import open_broker
from palermo.contract.events import Subscription
from palermo.inspector.doctor import examine
from palermo.jobs.redaction import MASK
from palermo.webui.pages.topics import WIDTH
from tests.contract.tools import message
from tests.contract.workers import consume, take
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import ended, write
from tests.webui.conftest import Serve
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
    for id, kind, more, status, why in (
        ("a", "failed", {"error": "ValueError", "message": "no"}, 409, "job a failed: ValueError: no"),
        ("b", "succeeded", {"refused": "the result is too large"}, 409, "job b is done, but the result is too large"),
        ("c", "succeeded", {}, 409, "job c is done, but its result was not kept"),
        ("d", "succeeded", {"skipped": True}, 200, ""),
        ("e", "started", {}, 404, "job e: it is not waiting, scheduled, running or failed"),
    ):
        write(web.client, [ended(id, kind, at=time.time(), **more)])

        answer = web.http.get(f"/api/jobs/{id}/result")

        assert (answer.status_code, why in answer.json().get("error", "")) == (status, True), id
        assert why.partition(":")[0] in web.http.get(f"/jobs/{id}?result=1").text


KEY = 'shop.sync:<b>"eu/1"</b>'


# -- keys


def test_the_page_of_a_job_shows_the_next_job_of_its_key(web: Web) -> None:
    first, second = (web.client.enqueue("burst.sync", [nth], throttle=600).id for nth in (1, 2))
    plain = web.client.enqueue("burst.note", [3]).id

    text = unescape(web.http.get(f"/jobs/{first}").text)
    for said in ("throttle:burst.sync", "Next job with its key", f"/jobs/{second}", "Its key is closed until"):
        assert said in text
    row = web.api(f"jobs/{first}/status")
    assert (row["state"], row["key"], row["next_id"]) == ("pending", "throttle:burst.sync", second)
    assert row["closed_until"] == web.api(f"jobs/{second}/status")["run_at"]
    assert "Its key is closed until" not in web.http.get(f"/jobs/{plain}").text


# -- topics


def subscribe(web: Web, group: str = "mail", *topics: str, prefix: str = "") -> Subscription:
    """As a worker does when it starts."""
    queue = f"{prefix or web.client.settings.prefix}_{group}"
    one = Subscription(group=group, queue=queue, topics=topics or ("order.*",), function=f"shop.{group}")
    web.client.run(lambda broker: broker.events.subscribe(one))
    return one


def test_the_page_draws_the_wiring_with_counts_and_tells_old_events_again(web: Web) -> None:
    subscribe(web, "mail", "order.*", "bill.paid")
    web.client.publish("order.paid", {"password": "hunter2"})

    text = web.http.get("/topics?ask=x").text
    drawn = text.partition(f'<svg viewBox="0 0 {WIDTH}')[2].partition("</svg>")[0]
    for name in ("palermo_gateway", "palermo_distributor", "palermo_mail", "order.*", "bill.paid", "shop.mail"):
        assert name in text
    assert "1 waiting, 0 running, 0 workers" in drawn
    assert ">1 kept<" in drawn
    assert f'href="/queues/{quote("palermo_mail")}"' in drawn

    assert "Replayed 1 event to mail." in web.form("/topics", "/topics/mail/replay", age="hour").text
    assert web.inspector.queues.size("palermo_mail") == 2
    assert web.form("/topics", "/topics/mail/replay", topic="order.pa*").status_code == 422
    assert web.form("/topics", "/topics/mail/replay", age="year").status_code == 422
    assert "Removed the subscription of mail." in web.form("/topics", "/topics/mail/remove").text
    assert web.inspector.events.groups() == []

    # Groups of another prefix are listed, and not drawn at this gateway.
    assert "a prefix other than" not in text
    subscribe(web)
    subscribe(web, "audit", prefix="billing")
    text = web.page("/topics", "The picture omits 1 group with a prefix other than")
    assert 'href="/queues/billing_audit"' in text
    assert "billing_audit" not in text.partition(f'<svg viewBox="0 0 {WIDTH}')[2].partition("</svg>")[0]


def test_events_that_are_refused_are_neither_counted_nor_told_again(settings: Any, serve: Serve) -> None:
    web = serve(replace(settings, events_unsubscribed="refuse"))
    subscribe(web)

    text = web.http.get("/topics").text

    assert ("Events without a subscriber are refused." in text, "Replay" in text) == (True, False)
    assert web.api("topics")["kept"] is None


# -- limits


def test_limits_are_listed_and_filtered(web: Web) -> None:
    async def go() -> None:
        """One of two limited jobs runs, and the other is put aside, until their worker is gone."""
        broker = await open_broker(web.inspector._client.settings.session("worker"))
        try:
            asks = {"limit": 1, "limit-key": KEY}
            await broker.publish_many([message(extra=asks), message(extra=asks)])
            consumer = await consume(broker, slots=2)
            assert [await consumer.permit(await take(consumer, slot)) for slot in (1, 2)] == [0.0, None]
            await asyncio.to_thread(look)
        finally:
            await broker.close()

    def look() -> None:
        row = {"key": KEY, "limit": 1, "rate": None, "running": 1, "waiting": 1}
        assert web.http.get("/api/limits").json() == {"rows": [row], "total": 1, "page": 1, "limit": 100}
        assert web.http.get("/api/limits?text=us").json()["rows"] == []
        text = web.http.get("/limits").text
        assert (KEY in text, KEY in unescape(text)) == (False, True)
        assert "No key matches." in web.http.get("/limits?text=us").text

    assert "No job with a limit is running or waiting." in web.http.get("/limits").text
    asyncio.run(go())
