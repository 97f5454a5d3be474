"""What jobs share: keys of unique jobs and topics of events, on their pages and in the API."""

from html import unescape
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from palermo.contract.events import Subscription
from palermo.webui.pages.topics import WIDTH
from tests.webui.conftest import Serve
from tests.webui.server import Web

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


def test_the_page_draws_the_wiring_with_counts(web: Web) -> None:
    subscribe(web, "mail", "order.*", "bill.paid")
    web.client.publish("order.paid", {"password": "hunter2"})

    text = web.http.get("/topics?ask=x").text
    drawn = text.partition(f'<svg viewBox="0 0 {WIDTH}')[2].partition("</svg>")[0]
    for name in ("palermo_gateway", "palermo_distributor", "palermo_mail", "order.*", "bill.paid", "shop.mail"):
        assert name in text
    assert "1 waiting, 0 running, 0 workers" in drawn
    assert ">1 kept<" in drawn
    assert f'href="/queues/{quote("palermo_mail")}"' in drawn

    # Groups of another prefix are listed, and not drawn at this gateway.
    assert "a prefix other than" not in text
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
