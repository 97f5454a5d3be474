import json

from palermo.client.client import Client
from tests.cli.conftest import Palermo


def test_the_clients_of_a_queue_are_listed_and_cleared(palermo: Palermo, client: Client) -> None:
    for tenant, count in (("acme", 3), ("zebra", 1)):
        for number in range(count):
            client.enqueue("shop.resize", [number], queue="images", tenant=tenant, share=2)

    listed = json.loads(palermo("clients", "images", "--json").stdout)
    text = palermo("clients", "images", "--limit", "1")

    assert listed == [
        {"tenant": "acme", "queue": "images", "pending": 3, "share": 2.0},
        {"tenant": "zebra", "queue": "images", "pending": 1, "share": 2.0},
    ]
    assert json.loads(palermo("tenants", "images", "--json").stdout) == listed
    assert json.loads(palermo("tenants", "images", "--tenant", "zebra", "--json").stdout) == listed[1:]
    assert json.loads(palermo("tenants", "images", "--tenant", "nobody", "--json").stdout) == []
    nobody = palermo("tenants", "images", "--tenant", "nobody").stderr
    assert nobody == "no jobs waiting in queue 'images' belong to tenant 'nobody'.\n"
    assert "acme" in text.stdout
    assert text.stdout.startswith("Tenant")
    assert "page 1: 1 tenant of 2" in text.stderr
    palermo("enqueue", "shop.resize", "-q", "other")
    assert "no tenants" in palermo("tenants", "other").stderr
    assert "'nowhere'" in palermo("tenants", "nowhere", code=4).stderr

    assert "--yes" in palermo("purge", "images", "--client", "acme", code=2).stderr
    assert palermo("purge", "images", "--client", "acme", "--yes").stdout == (
        "removed 3 jobs of acme from queue images.\n"
    )
    assert "acme" in palermo("purge", "images", "--client", "acme", "--yes", code=4).stderr
    palermo("purge", "images", "--yes")
    palermo("enqueue", "shop.resize", "-q", "images", "--tenant", "zebra")
    (row,) = json.loads(palermo("jobs", "images", "--json").stdout)
    assert row["tenant"] == "zebra"
