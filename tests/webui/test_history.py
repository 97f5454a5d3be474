"""The pages of the journal, its API and the page of a job, as a reader without JavaScript uses them, on each broker."""

import re

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.settings.settings import Settings
from palermo.webui.state.journal_views import journal_views
from tests.helpers import eventually
from tests.history.written import NOON, done_by, ended, enqueued, failed, write
from tests.inspector.jobs import failure, message, publish_failed
from tests.tcp_proxy import TcpProxy
from tests.webui.conftest import Serve
from tests.webui.server import Web

XSS = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def told(served: Web) -> Web:
    """The pages of a journal of 60 jobs and three actions; `a` is among the last, and has a whole life."""
    web = served
    many = [[enqueued(f"j-{n:02}"), ended(f"j-{n:02}", at=NOON + n, took=n / 10)] for n in range(57)]
    write(web.client, *many)
    life = [
        *(enqueued("a", queue="slow"), failed("a", "retried", at=NOON + 101, queue="slow", delay=15, took=0.5)),
        {**ended("a", "log", at=NOON + 120, queue="slow", attempt=2), "text": "the first line"},
        {**ended("a", "progress", at=NOON + 121, queue="slow", attempt=2), "fraction": 0.4, "text": "page 4 of 10"},
        failed("a", at=NOON + 122, queue="slow", message=XSS, attempt=2),
        ended("a", at=NOON + 140, queue="slow", attempt=3, took=2.5),
    ]
    write(web.client, life, [failed("b", at=NOON + 150), ended("c", "discarded", at=NOON + 151, reason="too late")])
    actions = [
        done_by("anna", "requeue", at=NOON + 130, ids=["a"], count=1),
        done_by("bert", "pause", at=NOON + 160, queue="mail"),
        done_by(XSS, "purge", at=NOON + 170, queue=XSS, outcome="refused", what=XSS),
    ]
    write(web.client, actions, writer="")
    assert journal_views(web.app.state.site).following.wait(60)
    return web


def listed(web: Web, path: str) -> list[str]:
    """The ids of the jobs of a page, in order."""
    page = web.http.get(path)
    assert page.status_code == 200, page.text
    return re.findall(r'<th scope="row".*?href="/jobs/([^"?]+)', page.text, re.DOTALL)


def test_what_people_did_is_listed_with_who_and_when(told: Web) -> None:
    for path in ("/audit", "/history", "/jobs/a"):
        assert XSS not in told.http.get(path).text
    text, of_anna = told.shown("/audit"), told.shown("/audit?filter=by:anna")
    assert re.search(r"purge queue .*refused.* pause queue bert via web mail .* requeue anna via web 1 job a ", text)
    assert ("requeue anna via web" in of_anna, "bert" in of_anna) == (True, False)
    assert "No action matches." in told.shown("/audit?filter=by:anna+action:pause")
    assert "requeue anna via web" in told.shown("/audit?filter=action:re*")


def test_a_failed_job_shows_what_the_journal_and_the_queue_know(told: Web) -> None:
    publish_failed(told.client, (message("b"), failure()))

    page = told.shown("/jobs/b")

    assert ("builtins.ValueError at pid:7@host/worker-2" in page, "no such thing" in page) == (True, True)
    assert ("Edit and requeue" in page, "Not found" in page) == (True, False)


def test_rows_and_lives_and_actions_for_programs(told: Web) -> None:
    found = told.api("history", limit=2, text="j-5", page=2)
    assert (found["total"], [row["id"] for row in found["rows"]]) == (7, ["j-54", "j-53"])
    (row,) = told.api("history", text="j-56")["rows"]
    assert (row["state"], row["took"], row["wait"], row["attempt"]) == ("done", 5.6, 0.25, 1)
    kinds = "enqueued retried log progress failed action succeeded"
    assert [step["kind"] for step in told.api("history/a")["rows"]] == kinds.split()
    assert told.http.get("/api/history/nobody").status_code == 404
    assert [row["action"] for row in told.api("audit", by="b*")["rows"]] == ["pause"]
    assert told.api("audit")["total"] == 3


def test_where_nothing_is_written_down_the_api_says_so(settings: Settings, serve: Serve) -> None:
    web = serve(replace(settings, journal="off"))

    assert web.http.get("/jobs/nobody").status_code == 404
    for path in ("history", "stats"):
        answer = web.http.get(f"/api/{path}")
        assert (answer.status_code, "journal" in answer.json()["error"]) == (409, True)
    assert "journal." not in web.http.get("/stats.txt").text


def test_pages_outlast_an_absent_broker(proxied: tuple[TcpProxy, Settings], rabbitmq_url: str, serve: Serve) -> None:
    proxy, settings = proxied
    with Client(replace(settings, url=rabbitmq_url)) as client:
        write(client, [failed("a")])
        web = serve(settings)
        eventually(lambda: listed(web, "/history") == ["a"])

        proxy.refuse()
        proxy.hang_up(reset=True)
        eventually(lambda: "The journal cannot be read at the moment" in web.shown("/history"))
        assert listed(web, "/history") == ["a"]
        write(client, [failed("b")])
        proxy.listen()

        eventually(lambda: listed(web, "/history") == ["b", "a"])
        eventually(lambda: "cannot be read" not in web.shown("/history"))
