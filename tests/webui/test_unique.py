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
