"""A request that can mean nothing is refused with the reason, and changes nothing."""

import json
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web

#: Pages that know which names their address takes.
PAGES = (
    *("/failures", "/history", "/audit", "/queues", "/queues/mail", "/classes", "/limits", "/unique", "/scheduled"),
    *("/retries", "/tenants", "/statistics", "/search"),
)

#: Addresses, and what the answer names.
ADDRESSES = {
    **{f"{page}?err=x": "there is no parameter 'err'." for page in PAGES},
    "/failures/confirm?act=discard&all=1&err=x": "'err'",
    "/api/failed/groups?err=x": "'err'",
    "/api/failed?err=x": "Did you mean 'error'? This address takes ",
    "/api/queues?x=1": "This address takes nothing.",
    "/api/failed?error=": "error",
    "/api/failed?limit=0": "limit",
    **{f"/api/queues/mail/jobs?limit={limit}": "limit" for limit in (501, -1, "x")},
    f"/api/queues/mail/jobs?page={10**20}": "page",
    "/api/queues/mail/jobs?limit=500&page=21": "page",
    "/api/failed?since=yesterday": "since is 'yesterday'",
    "/api/failed?since=@1e300": "since is '@1e300'",
    "/api/failed?since=2026-01-01T00:00": "since is '2026-01-01T00:00'",
    "/api/scheduled?limit=0": "limit",
    "/api/scheduled?page=0": "page",
    "/api/scheduled?page=1000000&limit=500": "page",
    "/api/scheduled?retries=perhaps": "retries",
    "/scheduled?filter=due_from:tomorrow": "due_from",
    "/history?filter=longer:soon": "longer is 'soon'",
    "/history?filter=since:soon": "since is 'soon'",
    "/history?filter=state:finished": "no state 'finished'",
    "/audit?until=soon": "until is 'soon'",
    "/api/history?longer=soon": "longer is 'soon'",
    "/api/history?state=finished": "no state 'finished'",
    "/api/audit?until=soon": "until is 'soon'",
    "/api/stats?queue=a&job=b": "queue and job",
    "/api/stats?window=year": "window",
    "/statistics?queue=a&worker=b": "queue and worker",
    "/statistics?until=1h": "until is given without since",
    "/statistics?since=1h&until=2h": "since must be earlier",
    "/statistics?since=2d": "24 hours at most",
    "/statistics?since=yesterday": "since is 'yesterday'",
}

#: Bodies for the API, by address.
BODIES: dict[str, list[dict[str, Any]]] = {
    "failed/requeue": [
        *({}, {"ids": ["1"], "filter": {}}, {"ids": [""]}, {"ids": ["\ud800"]}, {"ids": ["bad"], "queue": "failed"}),
        *({"filter": {"eror": "KeyError"}}, {"filter": {"queue": "", "error": " ", "text": " "}}),
    ],
    "failed/discard": [{"filter": {"since": ""}}, {"ids": ["x"] * 10_001}],
    "failed/discard?queue=mail": [{"filter": {}}],
    "scheduled/cancel": [
        *({}, {"ids": ["1"], "filter": {}}, {"ids": [""]}, {"ids": ["\ud800"]}, {"ids": ["x"] * 10_001}),
        {"filter": {"quee": "mail"}},
    ],
    "scheduled/later/move": [
        *({}, {"at": "2030-01-01T00:00Z", "delay": 1}, {"later": 5, "delay": 5}),
        *({"at": "2030-01-01T00:00"}, {"at": 1e300}, {"delay": -1}, {"later": -5}),
    ],
    "scheduled/move": [{"ids": ["later"]}, {"filter": {"due_from": "soon"}, "later": 5}],
    "retries/give-up": [{"filter": {"retries": False}}],
    "recurring": [
        {},
        {"name": " a ", "job": "shop.x", "every": 60},
        *({"name": "a", "job": "shop.x", **wrong} for wrong in ({}, {"cron": "61 * * * *"}, {"every": 60, "until": 5})),
    ],
    "jobs/later/edit": [{"arguments": [2]}],
}

#: The fields of forms, by where they are sent.
FORMS: dict[str, list[dict[str, str]]] = {
    "/failures/act": [
        {"act": "discard", "number": "0"},
        {"act": "discard", "number": "2", "filter": "until=@9999999999&queue="},
        {"act": "discard", "number": "1001", "filter": "until=@9999999999", "typed": "1000"},
    ],
    "/scheduled/act": [
        {"act": "cancel"},
        *(
            {"act": "cancel", "filter": filter}
            for filter in ("queue=mail", "alligator", "all&quee=mail", "all&queue=", "all&retries=true")
        ),
        {"act": "give up", "id": "later"},
        {"act": "drop", "id": "later"},
        {"act": "cancel", "filter": "all&", "number": "1001", "typed": "1000"},
        *({"act": "move", "id": "later", "when": when} for when in ("", "tomorrow", "2030-01-01T00:00", "-5m", "+x")),
        {"act": "move", "id": "later", "when": "9999999d"},
    ],
    "/retries/act": [{"act": "run", "id": "later"}],
    "/queues/mail/act": [
        *({"act": "discard", "filter": filter} for filter in ("", "some&job=x", "all&tenant=x", "all&job=")),
        {"act": "requeue", "id": "wait"},
    ],
    "/queues/resume-selected": [{}],
    "/jobs/later/edit": [{"args": "{"}, {"args": "{}"}, {"priority": "10"}, {"when": "soon"}],
    "/recurring/sweep/edit": [{"every": "soon"}, {"cron": "61 * * * *"}, {"every": "5m", "args": "{}"}],
    "/recurring/sweep/run-with": [{"args": "[", "kwargs": "{}"}],
}

#: Requests about what is not there.
ABSENT = {
    "GET": ("/api/failed/nowhere", "/api/operations/nowhere", "/api/scheduled/nowhere", "/api/stats?queue=no"),
    "DELETE": ("/api/failed/nowhere", "/api/recurring/nowhere"),
    "POST": ("/api/failed/nowhere/requeue", "/api/operations/nowhere/stop", "/api/topics/nowhere/replay"),
}


def _id(what: object) -> str:
    return str(what)[:80]


@pytest.fixture(scope="module")
def filled(served: Web) -> Web:
    """One job in each list."""
    publish_failed(served.client, (message("bad"), failure()))
    publish(served.client, message("wait"))
    schedule(served.client, due("later", DAY), retrying("again", 2 * DAY))
    served.inspector.recurring.put("sweep", "shop.sweep", every=3_600)
    assert served.api("stats")["processed"] == 0
    return served


@pytest.fixture
def unchanged(filled: Web) -> Iterator[Web]:
    """The same pages, on which nothing has changed after the test."""

    def rows() -> list[Any]:
        known = filled.inspector
        lists = (known.failed.list(), known.jobs.list("mail"), known.scheduled.list())
        return [*(found.rows for found in lists), known.recurring.list()]

    before = rows()
    yield filled
    assert rows() == before
    assert [row["name"] for row in filled.inspector.queues.list()] == ["failed", "mail"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_means_nothing_is_refused(unchanged: Web, address: str) -> None:
    answer = unchanged.http.get(address, headers={} if "/api/" in address else {"accept": "text/html"})

    assert answer.status_code == 422
    assert ADDRESSES[address] in unescape(answer.text)
    assert answer.headers["content-type"] == ("application/json" if "/api/" in address else "text/html; charset=utf-8")


@pytest.mark.parametrize(
    ("path", "body"), [(path, body) for path, bodies in BODIES.items() for body in bodies], ids=_id
)
def test_a_body_that_means_nothing_is_refused(unchanged: Web, path: str, body: dict[str, Any]) -> None:
    # httpx would not encode half of a surrogate pair.
    content = json.dumps(body).encode()
    answer = unchanged.http.post(f"/api/{path}", content=content, headers={"content-type": "application/json"})

    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize(("to", "fields"), [(to, fields) for to, forms in FORMS.items() for fields in forms], ids=_id)
def test_a_form_that_means_nothing_is_refused(unchanged: Web, to: str, fields: dict[str, str]) -> None:
    answer = unchanged.form("/queues", to, **fields)

    assert answer.status_code == 422, answer.text
    assert 'role="alert"' in answer.text or "Go back" in answer.text


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in ABSENT.items() for path in paths])
def test_what_is_not_there_is_not_found(unchanged: Web, method: str, path: str) -> None:
    assert unchanged.http.request(method, path, json={} if method == "POST" else None).status_code == 404


def test_a_page_or_text_that_no_job_has_lists_nothing_and_pages_open_dialogs(filled: Web) -> None:
    for page in PAGES:
        assert filled.http.get(f"{page}?ask=enqueue").status_code == 200, page
    for address in (
        *("failed?page=999999999", "queues/mail/jobs?limit=500&page=20"),
        *("failed?text=%00%ed%a0%80", "scheduled?queue=%00%ed%a0%80"),
    ):
        assert filled.ids(address) == [], address
