"""Tenants of queues and keys of unique jobs, on their pages and in the API."""

from html import unescape
from urllib.parse import quote

from tests.harness.rig import Rig
from tests.webui.server import Web

KEY = 'shop.sync:<b>"eu/1"</b>'


def test_tenants_are_listed_and_cleared(web: Web) -> None:
    name = "acme / ü 100 %"
    for tenant, count in ((name, 3), ("zebra", 1)):
        web.client.enqueue_many([("shop.mail", [n], {}) for n in range(count)], queue="mail", tenant=tenant)
    one = f"queues/mail/tenants/{quote(name, safe='')}"

    listed = web.api("queues/mail/tenants")
    assert [(row["tenant"], row["pending"]) for row in listed["rows"]] == [(name, 3), ("zebra", 1)]
    assert listed["total"] == 2
    found = web.api("queues/mail/tenants", tenant=name)
    assert (found["rows"], found["total"]) == (listed["rows"][:1], 1)
    assert web.api("queues/mail/tenants?tenant=nobody")["rows"] == []
    nowhere = web.http.get("/api/queues/nowhere/tenants")
    assert (nowhere.status_code, "'nowhere'" in nowhere.text) == (404, True)
    for path in ("/tenants?queue=mail", "/tenants"):
        assert name in web.http.get(path).text

    assert web.http.delete(f"/api/{one}").json() == {"removed": 3}
    assert web.http.delete(f"/api/{one}").status_code == 404
    answer = web.form("/tenants?queue=mail", "/tenants/mail/clear", tenant="zebra")
    assert "Removed 1 job of zebra from mail." in answer.text
    assert web.inspector.size("mail") == 0


def test_all_jobs_of_tenants_in_a_paused_queue_are_shown_on_each_page(web: Web, rig: Rig) -> None:
    web.inspector.pause("mail")
    for tenant, count in (("acme", 3), ("zebra", 1)):
        web.client.enqueue_many([("shop.mail", [n], {}) for n in range(count)], queue="mail", tenant=tenant)
    rig.ready(rig.worker())

    assert web.inspector.shared() == {"mail": 4}
    assert "acme" in web.http.get("/tenants").text
    page = web.http.get("/queues/mail").text
    assert ("4 jobs of tenants" in page, "acme" in page, "zebra" in page) == (True, True, True)


def enqueue(web: Web, key: str) -> str:
    return web.client.enqueue("shop.sync", [1], unique="until_done", unique_key=key).id


def test_keys_are_listed_filtered_and_freed(web: Web) -> None:
    id = enqueue(web, '<b>"eu/1"</b>')
    enqueue(web, "us")

    answer = web.api("unique")
    assert answer == {"rows": web.inspector.unique_keys(), "total": 2, "page": 1, "limit": 100}
    row = answer["rows"][0]
    assert (row["key"], row["id"], row["state"], row["unique"]) == (KEY, id, "waiting", "until_done")
    assert [row["key"] for row in web.api("unique?text=us")["rows"]] == ["shop.sync:us"]
    text = web.http.get("/unique").text
    assert (KEY in text, KEY in unescape(text)) == (False, True)

    assert "Freed shop.sync:us" in web.form("/unique", "/unique/free", key="shop.sync:us").text
    assert web.http.post("/api/unique/free", json={"keys": [KEY]}).json() == {"freed": [KEY]}
    assert web.http.post("/api/unique/free", json={"keys": [KEY]}).status_code == 404
    assert web.inspector.unique_keys() == []


def test_the_page_of_a_job_shows_the_next_job_of_its_key(web: Web) -> None:
    first, second = (web.client.enqueue("burst.sync", [nth], throttle=600).id for nth in (1, 2))
    plain = web.client.enqueue("burst.note", [3]).id

    text = unescape(web.http.get(f"/jobs/{first}").text)
    for said in ("throttle:burst.sync", "Next job of its key", f"/jobs/{second}", "Its key is closed until"):
        assert said in text
    row = web.api(f"jobs/{first}/status")
    assert (row["state"], row["key"], row["next_id"]) == ("pending", "throttle:burst.sync", second)
    assert row["closed_until"] == web.api(f"jobs/{second}/status")["run_at"]
    assert "Its key is closed until" not in web.http.get(f"/jobs/{plain}").text
