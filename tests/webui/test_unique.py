"""Keys of unique jobs in the API and on their page."""

from html import unescape

from tests.webui.server import Web

KEY = 'shop.sync:<b>"eu/1"</b>'


def enqueue(web: Web, key: str, **options: object) -> str:
    unique = {"unique": "until_done", "unique_key": key, **options}
    return web.inspector._client.enqueue("shop.sync", [1], **unique).id  # type: ignore[arg-type]


def test_keys_are_listed_filtered_and_freed(web: Web) -> None:
    id = enqueue(web, '<b>"eu/1"</b>')
    enqueue(web, "us")

    answer = web.http.get("/api/unique").json()
    assert answer == {"rows": web.inspector.unique_keys(), "total": 2, "page": 1, "limit": 100}
    row = answer["rows"][0]
    assert (row["key"], row["id"], row["state"], row["unique"]) == (KEY, id, "waiting", "until_done")
    assert [row["key"] for row in web.http.get("/api/unique?text=us").json()["rows"]] == ["shop.sync:us"]

    text = web.http.get("/unique").text
    assert KEY not in text
    assert KEY in unescape(text)
    assert "Freed shop.sync:us" in web.form("/unique", "/unique/free", key="shop.sync:us").text
    assert web.http.post("/api/unique/free", json={"keys": [KEY]}).json() == {"freed": [KEY]}
    assert web.http.post("/api/unique/free", json={"keys": [KEY]}).status_code == 404
    assert "No job has a key." in web.http.get("/unique").text


def test_the_page_of_a_job_shows_the_next_job_of_its_key(web: Web) -> None:
    client = web.inspector._client
    first = client.enqueue("burst.sync", [1], throttle=600).id
    second = client.enqueue("burst.sync", [2], throttle=600).id

    text = unescape(web.http.get(f"/jobs/{first}").text)
    assert "throttle:burst.sync" in text
    assert "Next job of its key" in text
    assert f"/jobs/{second}" in text
    assert "Its key is closed until" in text
    row = web.http.get(f"/api/jobs/{first}/status").json()
    assert (row["state"], row["key"], row["next_id"]) == ("pending", "throttle:burst.sync", second)
    assert row["closed_until"] == web.http.get(f"/api/jobs/{second}/status").json()["run_at"]
    plain = client.enqueue("burst.note", [3]).id
    assert "Its key is closed until" not in web.http.get(f"/jobs/{plain}").text
