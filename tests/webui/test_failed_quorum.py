"""The failures page where failed jobs lie in a quorum queue, which is never read in order to be shown."""

import pika
import pytest

from palermo.core.topology import FAILED_QUEUE
from palermo.settings.settings import Settings
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.server import Web
from tests.webui.test_failed_api import ended, failed, ids

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


def test_pages_groups_and_a_job_are_shown_and_nothing_is_handed_out(settings: Settings, serve: Serve) -> None:
    web = serve(settings)
    jobs = [(message(str(n)), failure("KeyError" if n % 2 else "shop.Refused", at=1_000 + n)) for n in range(6)]
    publish_failed(web.client, *jobs)

    assert ids(web) == [str(n) for n in range(6)]
    assert ids(web, newest=True, limit=2) == ["5", "4"]
    assert ids(web, error="KeyError") == ["1", "3", "5"]
    assert [group["count"] for group in web.http.get("/api/failed/groups").json()["rows"]] == [3, 3]
    assert web.http.get("/api/failed/3").json() == web.inspector.failed_job("3")
    assert failed(web)["total"] == web.inspector.failed(limit=1).total == 6

    shown = web.http.get("/failures").text
    assert "shop.Refused" in shown
    assert "quorum" not in shown
    assert web.http.get("/jobs/3").status_code == 200
    assert len(web.inspector.groups()) == 2
    assert deliveries(settings) == 0


def test_what_is_requeued_and_discarded_leaves_the_page(settings: Settings, serve: Serve) -> None:
    web = serve(settings)
    publish_many_failed(web.client, 5)

    assert web.http.post("/api/failed/1/requeue", json={}).json()["taken"] == 1
    ended(web, web.http.post("/api/failed/discard", json={"ids": ["3"]}))

    assert sorted(ids(web)) == ["0", "2", "4"]
    assert {row["id"] for row in web.inspector.failed()} == {"0", "2", "4"}
    another = serve(settings)
    eventually(lambda: {row["id"] for row in failed(another)["rows"]} == {"0", "2", "4"})


def test_what_the_log_does_not_know_is_said(settings: Settings, serve: Serve, rabbitmq_url: str) -> None:
    web = serve(settings)
    publish_many_failed(web.client, 2)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", f"{settings.exchange}.{FAILED_QUEUE}", b"[]")

    def said(web: Web) -> bool:
        return "1 failed job in quorum queues is not shown" in web.http.get("/failures").text

    eventually(lambda: said(web))
    assert failed(web)["total"] == 2
    eventually(lambda: web.inspector.failed().unseen == 1)
