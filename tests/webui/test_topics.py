"""The page of topics, its drawing, and /api/topics."""

from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from palermo.contract.events import Subscription
from palermo.webui.pages.topics import WIDTH, topology_picture
from tests.helpers import eventually
from tests.webui.conftest import Serve
from tests.webui.server import Web


def subscribe(web: Web, group: str = "mail", *topics: str, prefix: str = "") -> Subscription:
    """As a worker does when it starts."""
    queue = f"{prefix or web.client.settings.prefix}_{group}"
    one = Subscription(group=group, queue=queue, topics=topics or ("order.*",), function=f"shop.{group}")
    web.client.run(lambda broker: broker.events.subscribe(one))
    return one


def row(group: str, *topics: str, **more: Any) -> dict[str, Any]:
    counts = {"pending": 0, "in_progress": 0, "workers": 1, "paused": False}
    return {"group": group, "topics": list(topics), "queue": f"palermo_{group}", "function": "", **counts, **more}


def test_rows_are_those_of_the_library_and_can_be_acted_on(web: Web) -> None:
    subscribe(web)
    subscribe(web, "audit", "#", "order.#")
    for number in range(3):
        web.client.publish("order.paid", number)

    answer = web.api("topics")

    assert answer["rows"] == web.inspector.topics()
    assert [each["group"] for each in answer["rows"]] == ["audit", "mail"]
    assert (answer["gateway"], answer["distributor"]) == ("palermo_gateway", "palermo_distributor")
    assert (answer["kept"], answer["unsubscribed"], answer["total"]) == (3, "keep", 2)
    assert answer["rows"][1]["pending"] == 3
    assert web.http.post("/api/topics/mail/replay", json={}).json() == {"told": 3}
    assert web.http.post("/api/topics/mail/replay", json={"topic": "bill.*", "age": 60}).json() == {"told": 0}
    assert web.inspector.size("palermo_mail") == 6
    assert web.http.post("/api/topics/mail/replay", json={"topic": "a..b"}).status_code == 422
    assert web.http.delete("/api/topics/mail").json() == {"removed": 1}
    assert web.http.delete("/api/topics/mail").status_code == 404
    assert [each["group"] for each in web.inspector.topics()] == ["audit"]


def test_groups_of_another_prefix_are_listed_and_not_drawn_at_this_gateway(web: Web) -> None:
    own = subscribe(web)
    assert "another prefix" not in web.http.get("/topics").text
    subscribe(web, "audit", prefix="billing")

    text = eventually(lambda: "1 group of another prefix" in (page := web.http.get("/topics").text) and page)

    drawn = text.partition(f'<svg viewBox="0 0 {WIDTH}')[2].partition("</svg>")[0]
    assert own.queue in drawn
    assert "billing_audit" not in drawn
    assert 'href="/queues/billing_audit"' in text


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

    said = web.form("/topics", "/topics/mail/replay", age="hour")
    assert "Replayed 1 event to mail." in said.text
    assert web.inspector.size("palermo_mail") == 2
    assert web.form("/topics", "/topics/mail/replay", topic="order.pa*").status_code == 422
    assert web.form("/topics", "/topics/mail/replay", age="year").status_code == 422
    assert "mail gets no more events." in web.form("/topics", "/topics/mail/remove").text
    assert web.inspector.topics() == []


def test_events_that_are_refused_are_neither_counted_nor_told_again(settings: Any, serve: Serve) -> None:
    web = serve(replace(settings, events_unsubscribed="refuse"))
    subscribe(web)

    text = web.http.get("/topics").text

    assert "Events without a subscriber are refused." in text
    assert "Replay" not in text
    assert web.api("topics")["kept"] is None


@pytest.mark.parametrize(
    ("groups", "height"),
    [
        ([], 116),  # the exchanges, 48, and what is kept below
        ([row("a", "x")], 116),
        ([row("a", "x"), row("b", "y"), row("c", "z")], 3 * 48 + 4 * 14),
        ([row("a", *"abcdefghij"), row("b", "y")], 10 * 17 + 48 + 3 * 14),
    ],
)
def test_a_group_is_drawn_as_high_as_its_patterns(groups: list[dict[str, Any]], height: float) -> None:
    drawing = topology_picture(groups)

    assert (drawing.width, drawing.height, drawing.middle) == (WIDTH, height, height / 2)
    assert [branch.row for branch in drawing.branches] == groups
    places = [branch.y for branch in drawing.branches]
    assert places == sorted(places)
    for branch in drawing.branches:
        labels = [label.y for label in branch.labels]
        assert labels == sorted(labels)
        assert all(0 < y < height for y in labels)
