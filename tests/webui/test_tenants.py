"""The tenants of queues, on their page and in the API."""

from pathlib import Path
from urllib.parse import quote

import pika

from palermo.settings.settings import Settings
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.webui.server import Web


def test_tenants_are_listed_and_cleared(web: Web) -> None:
    name = "acme / ü 100 %"
    for tenant, count in ((name, 3), ("zebra", 1)):
        for number in range(count):
            web.client.enqueue("shop.mail", [number], queue="mail", tenant=tenant)

    listed = web.http.get("/api/queues/mail/tenants").json()
    one = web.http.get(f"/api/queues/mail/tenants?tenant={quote(listed['rows'][0]['tenant'])}").json()
    assert (one["rows"], one["total"]) == (listed["rows"][:1], 1)
    assert web.http.get("/api/queues/mail/tenants?tenant=nobody").json()["rows"] == []
    nowhere = web.http.get("/api/queues/nowhere/tenants")
    assert (nowhere.status_code, "'nowhere'" in nowhere.text) == (404, True)
    page = web.http.get("/tenants?queue=mail").text

    assert [(row["tenant"], row["pending"]) for row in listed["rows"]] == [(name, 3), ("zebra", 1)]
    assert listed["total"] == 2
    assert name in page
    assert "Tenants" in web.http.get("/tenants").text

    done = web.http.delete(f"/api/queues/mail/tenants/{quote(name, safe='')}")
    assert (done.status_code, done.json()) == (200, {"removed": 3})
    again = web.http.delete(f"/api/queues/mail/tenants/{quote(name, safe='')}")
    assert again.status_code == 404

    answer = web.form("/tenants?queue=mail", "/tenants/mail/clear", tenant="zebra")
    assert "Removed 1 job of zebra from mail." in answer.text
    assert web.inspector.size("mail") == 0


def test_all_jobs_of_tenants_in_a_paused_queue_are_shown_on_each_page(
    web: Web, settings: Settings, tmp_path: Path
) -> None:
    web.inspector.pause("mail")
    for tenant, count in (("acme", 3), ("zebra", 1)):
        web.client.enqueue_many([("shop.mail", [n], {}) for n in range(count)], queue="mail", tenant=tenant)
    rig = Rig(tmp_path, url=settings.url, exchange=settings.exchange)
    try:
        rig.ready(rig.worker())
        if settings.url.startswith("amqp"):
            await_turns(settings, 3)

        assert web.inspector.shared() == {"mail": 4}
        assert "acme" in web.http.get("/tenants").text
        page = web.http.get("/queues/mail").text
        assert ("4 jobs of tenants" in page, "acme" in page, "zebra" in page) == (True, True, True)
    finally:
        rig.close()


def await_turns(settings: Settings, count: int) -> None:
    """Wait until so many jobs of tenants lie in the job queue itself."""
    with pika.BlockingConnection(pika.URLParameters(settings.url)) as connection:
        channel, name = connection.channel(), f"{settings.exchange}.mail"
        eventually(lambda: channel.queue_declare(name, passive=True).method.message_count >= count)
