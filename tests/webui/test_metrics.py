"""`/metrics` of the web process: who gets it, and that it says what is so."""

import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from palermo.errors import SettingInvalid
from palermo.metrics.catalogue import WEB
from palermo.metrics.worker import listen
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.security.user_file import token_line
from palermo.webui.site import Role
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import counts, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.inspector.workflows import add_order
from tests.metrics.scraping import Scraped
from tests.webui.conftest import Serve
from tests.webui.server import Web

TOKEN = "a-token-for-prometheus"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def scrape(web: Web, **headers: str) -> Scraped:
    answer = web.http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scraped(answer.text)


def test_every_metric_of_the_catalogue_is_told_and_no_other(
    shared_web: Web, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "WAIT", 1.0)  # for a journal that is away
    away = scrape(serve(Settings(url="amqp://guest:guest@127.0.0.1:9/", publish_timeout=0.5)))
    assert (away.value("palermo_broker_up"), away.value("palermo_journal_up")) == (0, 0)
    assert "palermo_slots" not in away.names

    shared_web.client.run(add_order)
    found = scrape(shared_web)

    own = {name for name in found.families if not name.startswith("process_")}
    assert own == {metric.name.removesuffix("_total") for metric in WEB}
    assert found.value("palermo_broker_up") == 1
    assert found.value("palermo_workers", state="idle") == 0
    assert (found.value("palermo_workflows", state="running"), found.value("palermo_workflow_jobs")) == (1, 7)


def test_events_are_counted_from_zero_and_queues_measured(rig: Rig, serve: Serve) -> None:
    write(rig.client, [counts(time.time(), "jobs", succeeded=5, enqueued=5)])
    # What is stored after the pages have read the journal counts.
    web = serve(rig.settings)
    eventually(lambda: scrape(web).value("palermo_journal_up") == 1)
    jobs = {"queue": "jobs", "job_name": "shop.send"}
    assert scrape(web).value("palermo_jobs_processed_total", outcome="succeeded", **jobs) == 0

    durations = {"run": {"40": 30}, "wait": {"20": 30}}
    sent = {**counts(time.time(), "jobs", succeeded=30, enqueued=30), **durations}
    paid = {**counts(time.time(), "jobs", "shop.pay", failed=2), "wait": {"20": 2}}
    write(web.client, [sent, paid], writer="pid:8@host")
    publish_failed(web.client, *((message(id, queue="jobs"), failure()) for id in ("bad-1", "bad-2")))
    publish(web.client, message("1"), message("2"))
    web.inspector.queues.pause("mail")

    def told() -> Scraped:
        found = scrape(web)
        assert found.value("palermo_jobs_processed_total", outcome="succeeded", **jobs) == 30
        assert found.value("palermo_jobs_processed_total", outcome="failed", queue="jobs", job_name="shop.pay") == 2
        assert found.value("palermo_jobs_enqueued_total", **jobs) == 30
        assert found.value("palermo_failed_jobs", queue="failed") == 2
        assert found.value("palermo_queue_pending_jobs", queue="mail") == 2
        assert found.value("palermo_queue_paused", queue="mail") == 1
        return found

    found = eventually(told)

    assert found.value("palermo_job_run_seconds_count", **jobs) == 30
    assert found.value("palermo_job_wait_seconds_count", queue="jobs") == 32
    assert found.value("palermo_queue_pending_jobs", queue="failed") is None
    assert found.value("palermo_queue_running_jobs", queue="mail") == 0
    assert found.value("palermo_queue_paused", queue="jobs") == 0


def test_a_job_that_was_delayed_is_as_old_as_it_is_due(shared_web: Web) -> None:
    now = time.time()
    for queue, run_at in (("plain", None), ("delayed", now - 5)):
        publish(shared_web.client, message(queue, queue=queue, created_at=int(now) - 9_000, run_at=run_at))

    def ages() -> bool:
        found = scrape(shared_web)
        plain, delayed = (found.value("palermo_queue_oldest_age_seconds", queue=name) for name in ("plain", "delayed"))
        return plain is not None and delayed is not None and plain >= 9_000 and 5 <= delayed < 600

    eventually(ages)


def test_the_token_opens_it_by_any_name_of_the_host_and_nothing_else(tmp_path: Path, serve: Serve) -> None:
    viewers, line = token_line("grafana", Role.VIEWER)
    users = tmp_path / "users"
    users.write_text(f"{line}\n")
    web = serve(Settings(url=f"sqlite:///{tmp_path}/jobs.db", metrics_token=TOKEN), users=str(users))
    ask = web.http.get

    assert ask("/metrics").status_code == 401
    assert ask("/metrics", headers={"Authorization": "Bearer another"}).status_code == 401
    assert ask("/metrics", headers={"Authorization": f"Bearer {viewers}"}).status_code == 200
    assert ask("/metrics", headers=BEARER).status_code == 200
    assert web.http.head("/metrics", headers=BEARER).content == b""
    assert ask("/queues", headers=BEARER).status_code == 401
    assert web.http.post("/metrics", headers=BEARER).status_code == 401

    by_address = {"Host": "10.1.2.3:3000"}
    assert ask("/metrics", headers=by_address).status_code == 400
    for path, status in (("/metrics", 200), ("/metrics/", 400), ("/Metrics", 400), ("/metrics/x", 400)):
        assert web.http.get(path, headers={**by_address, **BEARER}).status_code == status, path


def test_a_lack_of_the_client_is_told(shared_web: Web, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    answer = shared_web.http.get("/metrics")

    assert answer.status_code == 501
    assert answer.text == "metrics need prometheus_client: pip install 'palermo[metrics]'.\n"
    with pytest.raises(SettingInvalid, match=r"pip install 'palermo\[metrics\]'"):
        listen(replace(settings, metrics_port=0))
