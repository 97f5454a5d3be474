"""The failures page where failed jobs lie in a quorum queue, which is never read in order to be shown."""

import pika
import pytest

from palermo.core.topology import FAILED_QUEUE
from palermo.settings.settings import Settings
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.test_failed_api import ended

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def settings(rabbitmq_url: str, exchange: str) -> Settings:
    return Settings(url=rabbitmq_url, exchange=exchange, queue_type="quorum", publish_timeout=BROKER_PATIENCE)


def deliveries(settings: Settings) -> int:
    """How often the first failed job was handed out, this time left out."""
    with pika.BlockingConnection(pika.URLParameters(settings.url)) as connection:
        method, properties, _ = connection.channel().basic_get(f"{settings.exchange}.{FAILED_QUEUE}")
    assert method is not None
    return int(properties.headers.get("x-delivery-count", 0)) + bool(method.redelivered)


def test_jobs_are_shown_and_taken_and_none_is_handed_out_to_be_shown(settings: Settings, serve: Serve) -> None:
    web = serve(settings)
    jobs = [(message(str(n)), failure("KeyError" if n % 2 else "shop.Refused", at=1_000 + n)) for n in range(6)]
    publish_failed(web.client, *jobs)

    assert web.ids("failed") == [str(n) for n in range(6)]
    assert web.ids("failed", newest=True, limit=2) == ["5", "4"]
    assert web.ids("failed", error="KeyError") == ["1", "3", "5"]
    assert [group["count"] for group in web.api("failed/groups")["rows"]] == [3, 3]
    assert web.api("failed/3") == web.inspector.failed_job("3")
    assert web.api("failed")["total"] == web.inspector.failed(limit=1).total == 6
    shown = web.shown("/failures")
    assert ("shop.Refused" in shown, "quorum" in shown) == (True, False)
    assert web.http.get("/jobs/3").status_code == 200
    assert len(web.inspector.groups()) == 2
    assert deliveries(settings) == 0

    assert web.http.post("/api/failed/1/requeue", json={}).json()["taken"] == 1
    ended(web, web.http.post("/api/failed/discard", json={"ids": ["3"]}))

    left = ["0", "2", "4", "5"]
    assert sorted(web.ids("failed")) == left
    assert sorted(row["id"] for row in web.inspector.failed()) == left
    another = serve(settings)
    eventually(lambda: sorted(another.ids("failed")) == left)


def test_what_the_log_does_not_know_is_said(settings: Settings, serve: Serve) -> None:
    web = serve(settings)
    publish_many_failed(web.client, 2)
    with pika.BlockingConnection(pika.URLParameters(settings.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", f"{settings.exchange}.{FAILED_QUEUE}", b"[]")

    eventually(lambda: "1 failed job in quorum queues is not shown" in web.shown("/failures"))
    assert web.api("failed")["total"] == 2
    eventually(lambda: web.inspector.failed().unseen == 1)
