"""The clients of queues, on their page and in the API."""

from urllib.parse import quote

from tests.webui.server import Web


def test_clients_are_listed_and_cleared(any_web: Web) -> None:
    name = "acme / ü 100 %"
    for tenant, count in ((name, 3), ("zebra", 1)):
        for number in range(count):
            any_web.client.enqueue("shop.mail", [number], queue="mail", tenant=tenant)

    listed = any_web.http.get("/api/queues/mail/clients").json()
    one = any_web.http.get(f"/api/queues/mail/clients?tenant={quote(listed['rows'][0]['tenant'])}").json()
    assert (one["rows"], one["total"]) == (listed["rows"][:1], 1)
    assert any_web.http.get("/api/queues/mail/clients?tenant=nobody").json()["rows"] == []
    page = any_web.http.get("/clients?queue=mail").text

    assert [(row["tenant"], row["pending"]) for row in listed["rows"]] == [(name, 3), ("zebra", 1)]
    assert listed["total"] == 2
    assert name in page
    assert "Clients" in any_web.http.get("/clients").text

    done = any_web.http.delete(f"/api/queues/mail/clients/{quote(name, safe='')}")
    assert (done.status_code, done.json()) == (200, {"removed": 3})
    again = any_web.http.delete(f"/api/queues/mail/clients/{quote(name, safe='')}")
    assert again.status_code == 404

    answer = any_web.form("/clients?queue=mail", "/clients/mail/clear", tenant="zebra")
    assert "Removed 1 job of zebra from mail." in answer.text
    assert any_web.inspector.size("mail") == 0
