"""`palermo publish` and `palermo topics`."""

from palermo.client.client import Client
from palermo.contract.events import Subscription
from tests.cli.conftest import Palermo


def subscribe(client: Client, group: str, *topics: str) -> None:
    """As a worker does when it starts."""
    one = Subscription(group=group, queue=f"palermo_{group}", topics=topics, function=f"shop.{group}")
    client.run(lambda broker: broker.events.subscribe(one))


def test_an_event_is_published_and_told_again_to_one_group(palermo: Palermo, client: Client) -> None:
    subscribe(client, "mail", "order.*")
    subscribe(client, "audit", "#")

    id = palermo("publish", "order.paid", "--payload", '{"n": 1}').stdout.strip()
    assert palermo("publish", "order.sent", "--id", "e2").stdout == "e2\n"

    (first, second) = palermo.rows("jobs", "palermo_mail")
    assert (first["id"], first["job"], first["preview"]) == (f"{id}@mail", "mail", "{'n': 1}")
    assert second["id"] == "e2@mail"
    rows = palermo.rows("topics")
    assert [(row["group"], row["topics"], row["pending"]) for row in rows] == [
        ("audit", ["#"], 2),
        ("mail", ["order.*"], 2),
    ]
    assert rows == palermo.rows("topics", "list")
    shown = palermo("topics")
    assert "order.*" in shown.stdout
    assert "gateway" not in shown.stderr  # an exchange of RabbitMQ; here is none
    assert "2 events kept" in shown.stderr

    assert palermo("topics", "replay", "mail", "--yes", "--since", "1h", "--topic", "order.sent").stdout == "1\n"
    assert len(palermo.rows("jobs", "palermo_mail")) == 3

    palermo("topics", "remove", "mail", "--yes")
    assert [row["group"] for row in palermo.rows("topics")] == ["audit"]
    for action in ("remove", "replay"):
        assert "'mail'" in palermo("topics", action, "mail", "--yes", code=4).stderr
