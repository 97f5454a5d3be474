"""Failed jobs in the API and on their page."""

import json
from typing import Any

import httpx
import pika
import pytest
from msgspec.structs import replace

from palermo.core.topology import FAILED_QUEUE
from palermo.jobs.redaction import MASK
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.server import Web

pytestmark = pytest.mark.usefixtures("patient")


def ended(web: Web, answer: httpx.Response) -> dict[str, Any]:
    """What an operation came to."""
    assert answer.status_code in (200, 202), answer.text
    id = answer.json()["id"]

    def over() -> dict[str, Any]:
        row: dict[str, Any] = web.api(f"operations/{id}")
        return row if row["outcome"] else {}

    return eventually(over)


def discarded(web: Web, text: str) -> int:
    """How many jobs were discarded that have this text."""
    # httpx would not encode half of a surrogate pair.
    content = json.dumps({"filter": {"text": text}}).encode()
    answer = web.http.post("/api/failed/discard", content=content, headers={"content-type": "application/json"})
    taken: int = ended(web, answer)["taken"]
    return taken


def test_blanks_around_a_text_are_part_of_it_and_blank_fields_no_filter(web: Web) -> None:
    texts = ["order 1 is late", "order 10", "order 13", "ORDER 1 again"]
    publish_failed(web.client, *((message(f"{n}"), failure(text=text)) for n, text in enumerate(texts)))

    assert web.ids("failed", text="order 1 ") == ["0", "3"]
    asked = web.shown("/failures/confirm?act=discard&all=1&filter=%22order+1+%22")
    assert "Discard 2 jobs?" in asked
    assert 'Filter: "order 1 "' in asked
    blank = web.shown("/failures/confirm?act=discard&all=1&filter=+")
    assert "Discard 4 jobs?" in blank
    assert "All jobs, without a filter." in blank
    assert web.http.post("/api/failed/discard", json={"filter": {"queue": None}}).status_code == 422
    assert (discarded(web, "order 1 "), discarded(web, "\ud800")) == (2, 0)
    assert web.ids("failed") == ["1", "2"]


def test_a_group_is_named_by_its_error_and_not_its_fingerprint(web: Web) -> None:
    publish_failed(web.client, (message("1"), failure()), (message("2"), failure("KeyError", at=1_000)))
    [key_error] = [row["fingerprint"] for row in web.api("failed/groups")["rows"] if row["error"] == "KeyError"]
    listed = web.shown(f"/failures?filter=group:{key_error}")
    asked = web.shown(f"/failures/confirm?act=requeue&all=1&filter=group:{key_error}")
    chosen = {"group": key_error, "queue": "mail", "requeued": False, "until": "@2000"}

    row = ended(web, web.http.post("/api/failed/requeue", json={"filter": chosen}))

    assert "Group: shop.send with KeyError" in listed
    assert "Requeue 1 job?" in asked
    assert "Filter: group:shop.send with KeyError" in asked
    assert "Filter: " not in web.shown("/failures/confirm?act=requeue&id=1")
    chosen = 'queue:mail until:1970-01-01T00:33:20Z group:"shop.send with KeyError" requeued:false'
    assert (row["taken"], row["about"]) == (1, f"failed jobs with {chosen}")
    assert key_error not in web.http.get(f"/failures/operations/{row['id']}").text


def test_nobody_is_shown_a_secret_and_an_edited_job_keeps_it(web: Web) -> None:
    secret = {"args": [1], "kwargs": {"password": "hunter2", "user": "ann"}}
    publish_failed(web.client, (message("1", body=json.dumps(secret).encode(), arguments="both"), failure()))
    long = json.dumps({"password": "hunter2", "text": "x" * 100_000}).encode()
    kept = replace(message("2", queue="long"), body=long, preview="password='hunter2'")
    publish_failed(web.client, (kept, failure()))

    row = web.api("failed/1")
    assert web.api("failed/2")["preview"] == MASK
    [not_kept] = web.api("failed", queue="long")["rows"]
    assert (not_kept["args"], not_kept["kwargs"], not_kept["preview"]) == (None, None, MASK)
    for path in ("/failures", "/jobs/1", "/jobs/2", "/failures/1/edit", "/api/failed", "/api/failed/1"):
        assert "hunter2" not in web.http.get(path).text, path
    changed = {**row["kwargs"], "user": "bob"}
    web.form("/failures/1/edit", "/failures/1/edit", args="[1]", kwargs=json.dumps(changed), queue="")

    [waiting] = web.inspector.jobs.list("mail").rows
    assert waiting["kwargs"] == {"password": "hunter2", "user": "bob"}


#: Arguments with a secret, and what is shown of them.
_SECRETS: dict[str, tuple[Any, str]] = {
    "named": ({"args": [], "kwargs": {"to": "ann", "password": "hunter2"}}, "to='ann', password='hunter2'"),
    "nested": ([{"to": "ann", "login": {"api_key": "hunter2"}}], "{'to': 'ann', 'login': {'api_key': 'hunter2'}}"),
    "a preview of another program": ({"args": [], "kwargs": {"to": "ann", "password": "hunter2"}}, "ann hunter2"),
    "of these pages alone": ({"args": [], "kwargs": {"to": "ann", "pin": "hunter2"}}, "to='ann', pin='hunter2'"),
}


@pytest.mark.parametrize("shape", _SECRETS)
def test_nobody_finds_out_by_searching_what_is_hidden(settings: Settings, serve: Serve, shape: str) -> None:
    alone = shape == "of these pages alone"
    web = serve(settings, redact=["*pin*"]) if alone else serve(settings)
    value, preview = _SECRETS[shape]
    body = json.dumps(value).encode()
    publish_failed(web.client, (replace(message("1"), body=body, preview=preview), failure()))
    eventually(lambda: web.ids("failed") == ["1"])

    for wanted in ("hunter2", "'h", "password='h", "pin='h", "hunter", "2'"):
        assert web.ids("failed", text=wanted) == [], wanted
        assert "Job 1" not in web.http.get("/failures", params={"text": wanted}).text
        filter = JobFilter(text=wanted)
        if not alone:
            assert (web.inspector.failed.list(filter=filter).rows, web.inspector.failed.groups(filter)) == ([], [])
            assert web.inspector.failed.count(filter) == 0
    assert MASK in web.api("failed")["rows"][0]["preview"]
    assert discarded(web, "hunter2") == 0
    # What is shown is found.
    assert web.ids("failed", text="ann") == ["1"]
    assert web.inspector.failed.count(JobFilter(text="ann")) == 1
    assert discarded(web, "ann") == 1


# -- in quorum queues, which are never read in order to be shown


@pytest.mark.slow
def test_failed_jobs_in_quorum_queues_are_shown_and_stay_there(rabbitmq_url: str, exchange: str, serve: Serve) -> None:
    settings = Settings(url=rabbitmq_url, exchange=exchange, queue_type="quorum", publish_timeout=BROKER_PATIENCE)
    web = serve(settings)
    jobs = [(message(str(n)), failure("KeyError" if n % 2 else "shop.Refused", at=1_000 + n)) for n in range(6)]
    publish_failed(web.client, *jobs)

    assert web.ids("failed") == [str(n) for n in range(6)]
    assert web.ids("failed", newest=True, limit=2, page=2) == ["3", "2"]
    assert web.ids("failed", error="KeyError") == ["1", "3", "5"]
    assert [group["count"] for group in web.api("failed/groups")["rows"]] == [3, 3]
    assert web.api("failed/3") == web.inspector.failed.show("3")
    assert web.api("failed")["total"] == web.inspector.failed.list(limit=1).total == 6
    shown = web.shown("/failures")
    assert ("shop.Refused" in shown, "quorum" in shown) == (True, False)
    assert web.http.get("/jobs/3").status_code == 200
    assert len(web.inspector.failed.groups()) == 2
    assert deliveries(settings) == 0

    assert web.http.post("/api/failed/1/requeue", json={}).json()["taken"] == 1
    ended(web, web.http.post("/api/failed/discard", json={"ids": ["3"]}))
    left = ["0", "2", "4", "5"]
    assert sorted(web.ids("failed")) == left
    assert sorted(row["id"] for row in web.inspector.failed.list()) == left

    # What the log does not know is said.
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", f"{exchange}.{FAILED_QUEUE}", b"[]")
    eventually(lambda: "1 failed job in quorum queues is not shown" in web.shown("/failures"))
    assert web.api("failed")["total"] == 4
    eventually(lambda: web.inspector.failed.list().unseen == 1)


def deliveries(settings: Settings) -> int:
    """How often the first failed job was handed out, this time left out."""
    with pika.BlockingConnection(pika.URLParameters(settings.url)) as connection:
        method, properties, _ = connection.channel().basic_get(f"{settings.exchange}.{FAILED_QUEUE}")
    assert method is not None
    return int(properties.headers.get("x-delivery-count", 0)) + bool(method.redelivered)
