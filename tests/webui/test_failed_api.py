"""Failed jobs in the API and on their page, on each broker."""

import json
import logging
import re
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from palermo.core.topology import FAILED_QUEUE
from palermo.inspector.failed_filter import FailedFilter
from palermo.jobs.redaction import MASK
from palermo.settings.settings import Settings
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed
from tests.webui.conftest import Serve
from tests.webui.server import Web

pytestmark = pytest.mark.usefixtures("patient")


def failed(web: Web, **asked: Any) -> dict[str, Any]:
    answer = web.http.get("/api/failed", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def ids(web: Web, **asked: Any) -> list[str]:
    return [row["id"] for row in failed(web, **asked)["rows"]]


def ended(web: Web, answer: httpx.Response) -> dict[str, Any]:
    """What an operation came to."""
    assert answer.status_code in (200, 202), answer.text
    id = answer.json()["id"]

    def over() -> dict[str, Any] | None:
        row: dict[str, Any] = web.http.get(f"/api/operations/{id}").json()
        return row if row["outcome"] else None

    found = eventually(over)
    assert found is not None
    return found


def test_pages_filters_and_order(web: Web) -> None:
    jobs = [(message(str(n)), failure("KeyError" if n % 2 else "shop.Refused", at=1_000 + n)) for n in range(10)]
    publish_failed(web.client, *jobs)

    assert ids(web, limit=3, page=2) == ["3", "4", "5"]
    assert ids(web, limit=3, newest=True) == ["9", "8", "7"]
    assert ids(web, error="Refused") == ["0", "2", "4", "6", "8"]
    assert ids(web, since="1970-01-01T00:16:48Z", error="KeyError") == ["9"]
    assert failed(web, error="KeyError", limit=2)["total"] == 5


def test_groups_have_a_history_and_a_filter(web: Web) -> None:
    publish_failed(web.client, *[(message(str(n)), failure("KeyError" if n else "ValueError")) for n in range(3)])

    answer = web.http.get("/api/failed/groups").json()

    [largest, other] = answer["rows"]
    assert (largest["count"], largest["error"], sum(largest["history"])) == (2, "KeyError", 2)
    assert ids(web, group=other["fingerprint"]) == ["0"]


def test_one_is_requeued_with_other_arguments_to_another_queue(web: Web) -> None:
    publish_failed(web.client, (message("1", "wrong"), failure()))

    asked = web.http.post("/api/failed/1/requeue", json={"args": ["right"], "queue": "slow"})
    done = web.http.post("/api/failed/1/requeue", json={"args": ["right"], "queue": "slow", "unserved": True})

    assert (asked.status_code, '"unserved": true' in asked.json()["error"]) == (409, True)
    assert (done.status_code, done.json()["taken"]) == (200, 1)
    assert [row["args"] for row in web.inspector.jobs("slow")] == [["right"]]
    assert ids(web) == []


def test_several_are_requeued_by_id_and_those_that_had_gone_are_counted(web: Web) -> None:
    publish_many_failed(web.client, 5)

    row = ended(web, web.http.post("/api/failed/requeue", json={"ids": ["1", "3", "3", "nowhere"]}))

    assert (row["taken"], row["gone"], row["outcome"]) == (2, 1, "Requeued 2 jobs, 1 had gone.")
    assert ids(web) == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/failed?limit=0", None, 422),
        ("GET", "/api/failed?since=yesterday", None, 422),
        ("GET", "/api/failed?since=@1e300", None, 422),
        ("GET", "/api/failed?since=2026-01-01T00:00", None, 422),
        ("GET", "/api/failed?page=999999999", None, 200),
        ("GET", "/api/failed?text=%00%ed%a0%80", None, 200),
        ("GET", "/api/failed/nowhere", None, 404),
        ("DELETE", "/api/failed/nowhere", None, 404),
        ("POST", "/api/failed/nowhere/requeue", {}, 404),
        ("POST", "/api/failed/requeue", {}, 422),
        ("POST", "/api/failed/requeue", {"ids": ["1"], "filter": {}}, 422),
        ("POST", "/api/failed/requeue", {"filter": {"eror": "KeyError"}}, 422),
        ("POST", "/api/failed/requeue", {"filter": {"queue": "", "error": " ", "text": " "}}, 422),
        ("POST", "/api/failed/discard", {"filter": {"since": ""}}, 422),
        ("POST", "/api/failed/discard?queue=mail", {"filter": {}}, 422),
        ("GET", "/api/failed?error=", None, 422),
        ("GET", "/api/failed/groups?err=x", None, 422),
        ("GET", "/failures/confirm?act=discard&all=1&err=KeyError", None, 422),
        ("POST", "/api/failed/requeue", {"ids": [""]}, 422),
        ("POST", "/api/failed/requeue", {"ids": ["\ud800"]}, 422),
        ("POST", "/api/failed/requeue", {"filter": {"text": "\ud800"}}, 200),
        ("POST", "/api/failed/requeue", {"ids": ["1"], "queue": "failed"}, 422),
        ("POST", "/api/failed/discard", {"ids": ["x"] * 10_001}, 422),
        ("GET", "/api/operations/nowhere", None, 404),
        ("POST", "/api/operations/nowhere/stop", {}, 404),
    ],
)
def test_what_cannot_be_is_answered_so(web: Web, method: str, path: str, body: Any, status: int) -> None:
    content = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"content-type": "application/json"}

    assert web.http.request(method, path, content=content, headers=headers).status_code == status


def test_an_unknown_name_in_an_address_is_named_with_those_that_are_known(web: Web) -> None:
    said = web.http.get("/api/failed?err=x").json()["error"]

    assert said.startswith("there is no parameter 'err'. Did you mean 'error'? This address takes ")
    assert {"page", "limit", "newest", "queue", "error"} <= set(re.findall(r"\w+", said.partition("takes ")[2]))
    assert "This address takes nothing." in web.http.get("/api/queues?x=1").json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        *("/failures", "/history", "/audit", "/queues", "/queues/mail", "/classes", "/limits", "/unique", "/scheduled"),
        *("/retries", "/tenants", "/statistics", "/search"),
    ],
)
def test_an_unknown_name_in_the_address_of_a_page_is_named_too(web: Web, path: str) -> None:
    web.client.enqueue("shop.mail", queue="mail")

    answer = web.http.get(f"{path}?err=x", headers={"accept": "text/html"})

    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert "there is no parameter &#39;err&#39;." in answer.text
    assert "This address takes " in answer.text
    assert web.http.get(f"{path}?ask=enqueue").status_code == 200


def test_blanks_around_a_text_are_part_of_it(web: Web) -> None:
    texts = ["order 1 is late", "order 10", "order 13", "ORDER 1 again"]
    publish_failed(web.client, *((message(f"{n}"), failure(text=text)) for n, text in enumerate(texts)))

    assert ids(web, text="order 1 ") == ["0", "3"]
    asked = web.http.get("/failures/confirm?act=discard&all=1&text=order+1+")
    assert "Discard 2 jobs?" in asked.text
    assert "Chosen by text “order 1 ”." in asked.text
    row = ended(web, web.http.post("/api/failed/discard", json={"filter": {"text": "order 1 "}}))

    assert row["taken"] == 2
    assert ids(web) == ["1", "2"]


def test_empty_fields_are_no_filter(web: Web) -> None:
    publish_many_failed(web.client, 2)

    page = web.http.get("/failures/confirm?act=discard&all=1&queue=&text=+&error=")
    assert "Discard 2 jobs?" in page.text
    assert "All are chosen, without a filter." in page.text
    blank = web.form("/failures", "/failures/act", act="discard", number="2", filter="until=@9999999999&queue=")

    assert blank.status_code == 422
    assert len(ids(web)) == 2


def test_the_question_names_the_group_that_was_chosen(web: Web) -> None:
    publish_failed(web.client, (message("1"), failure()), (message("2"), failure("KeyError")))
    groups = web.http.get("/api/failed/groups").json()["rows"]
    [key_error] = [row["fingerprint"] for row in groups if row["error"] == "KeyError"]

    page = web.http.get(f"/failures/confirm?act=requeue&all=1&group={key_error}").text

    assert "Requeue 1 job?" in page
    assert "Chosen by group “shop.send with KeyError”." in page
    assert "hosen by" not in web.http.get("/failures/confirm?act=requeue&id=1").text


def test_a_group_is_named_by_its_error_and_not_its_fingerprint(web: Web) -> None:
    publish_failed(web.client, (message("1"), failure()), (message("2"), failure("KeyError", at=1_000)))
    groups = web.http.get("/api/failed/groups").json()["rows"]
    [key_error] = [row["fingerprint"] for row in groups if row["error"] == "KeyError"]
    listed = web.http.get(f"/failures?group={key_error}").text
    chosen = {"group": key_error, "queue": "mail", "requeued": False, "until": "@2000"}

    row = ended(web, web.http.post("/api/failed/requeue", json={"filter": chosen}))

    assert (row["taken"], row["about"]) == (
        1,
        "failed jobs of the group shop.send with KeyError from the queue mail that were never requeued"
        " until 1970-01-01T00:33:20Z",
    )
    assert key_error not in web.http.get(f"/failures/operations/{row['id']}").text
    assert 'Only jobs of the group <span class="mono">shop.send with KeyError</span> are shown.' in listed


def test_nobody_is_shown_a_secret_and_an_edited_job_keeps_it(web: Web) -> None:
    job = message("1", body=b'{"args": [1], "kwargs": {"password": "hunter2", "user": "ann"}}', arguments="both")
    publish_failed(web.client, (job, failure()))

    row = web.http.get("/api/failed/1").json()
    page = web.http.get("/failures/1/edit").text
    assert "hunter2" not in json.dumps(row) + page + web.http.get("/failures").text
    changed = {**row["kwargs"], "user": "bob"}
    web.form("/failures/1/edit", "/failures/1/edit", args="[1]", kwargs=json.dumps(changed), queue="")

    [waiting] = web.inspector.jobs("mail").rows
    assert waiting["kwargs"] == {"password": "hunter2", "user": "bob"}


#: Arguments with a secret, and what is shown of them.
_SECRETS: dict[str, tuple[Any, str]] = {
    "named": ({"args": [], "kwargs": {"to": "ann", "password": "hunter2"}}, "to='ann', password='hunter2'"),
    "nested": ([{"to": "ann", "login": {"api_key": "hunter2"}}], "{'to': 'ann', 'login': {'api_key': 'hunter2'}}"),
    "a preview of another program": ({"args": [], "kwargs": {"to": "ann", "password": "hunter2"}}, "ann hunter2"),
}


@pytest.mark.parametrize("shape", _SECRETS)
def test_nobody_finds_out_by_searching_what_is_hidden(web: Web, shape: str) -> None:
    value, preview = _SECRETS[shape]
    body = json.dumps(value).encode()
    publish_failed(web.client, (replace(message("1"), body=body, preview=preview), failure()))
    eventually(lambda: failed(web)["total"] == 1)

    for wanted in ("hunter2", "'h", "password='h", "hunter", "2'"):
        assert ids(web, text=wanted) == [], wanted
        assert "Job 1" not in web.http.get("/failures", params={"text": wanted}).text
        filter = FailedFilter(text=wanted)
        assert web.inspector.failed(filter=filter).total == 0
        assert web.inspector.count_failed(filter) == 0
        assert web.inspector.groups(filter) == []
    row = ended(web, web.http.post("/api/failed/discard", json={"filter": {"text": "hunter2"}}))
    assert row["taken"] == 0
    # What is shown is found.
    assert ids(web, text="ann") == ["1"] == [row["id"] for row in web.inspector.failed(filter=FailedFilter(text="ann"))]
    assert MASK in failed(web)["rows"][0]["preview"]
    row = ended(web, web.http.post("/api/failed/discard", json={"filter": {"text": "ann"}}))
    assert row["taken"] == 1


def test_nobody_finds_out_by_searching_what_is_hidden_by_these_pages_alone(settings: Settings, serve: Serve) -> None:
    web = serve(settings, redact=["*pin*"])
    body = json.dumps({"args": [], "kwargs": {"to": "ann", "pin": "4711"}}).encode()
    publish_failed(web.client, (replace(message("1"), body=body, preview="to='ann', pin='4711'"), failure()))
    eventually(lambda: failed(web)["total"] == 1)

    assert MASK in failed(web)["rows"][0]["preview"]
    assert ids(web, text="pin='4") == []
    row = ended(web, web.http.post("/api/failed/discard", json={"filter": {"text": "4711"}}))
    assert row["taken"] == 0
    assert ids(web, text="ann") == ["1"]


def test_more_than_a_thousand_are_discarded_by_typing_the_number(web: Web) -> None:
    publish_many_failed(web.client, 1_001)
    page = web.http.get("/failures/confirm?act=discard&all=1")
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    assert "Discard 1,001 jobs?" in page.text
    assert "Type their number, 1001," in page.text

    refused = web.form("/failures", "/failures/act", **{**fields, "typed": "1000", "filter": "until=@9999999999"})
    assert refused.status_code == 422
    done = web.form("/failures", "/failures/act", **{**fields, "typed": "1,001", "filter": "until=@9999999999"})

    assert done.status_code == 200, re.sub(r"<[^>]*>|\s+", " ", done.text)
    eventually(lambda: web.inspector.size(FAILED_QUEUE) == 0)


def test_a_form_that_does_not_say_which_jobs_does_nothing(web: Web) -> None:
    publish_many_failed(web.client, 2)

    assert web.form("/failures", "/failures/act", act="discard", number="0").status_code == 422
    assert web.inspector.size(FAILED_QUEUE) == 2


def test_what_is_done_is_written_down(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    publish_many_failed(web.client, 2)

    with caplog.at_level(logging.INFO, logger="palermo.audit"):
        web.http.post("/api/failed/requeue", json={"ids": ["0", "1"]})
        eventually(lambda: "requeue ended" in caplog.text)

    assert "requeue by=local" in caplog.text
    assert "jobs=2 of=0, 1" in caplog.text


def test_secrets_of_bodies_that_are_not_kept_are_not_shown(web: Web) -> None:
    body = json.dumps({"password": "hunter2", "text": "x" * 100_000}).encode()
    publish_failed(web.client, (replace(message("1"), body=body, preview="password='hunter2'"), failure()))

    (row,) = failed(web)["rows"]
    assert (row["args"], row["kwargs"], row["preview"]) == (None, None, MASK)
    assert web.http.get("/api/failed/1").json()["preview"] == MASK
    for page in ("/failures", "/jobs/1"):
        assert "hunter2" not in web.http.get(page).text
