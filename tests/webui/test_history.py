"""The pages of the journal, its API and the page of a job, as a reader without JavaScript uses them, on each broker."""

import re

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.settings.settings import Settings
from palermo.webui.state.journal_views import journal_views
from tests.helpers import eventually
from tests.history.written import NOON, done_by, failed, write
from tests.inspector.jobs import failure, message, publish_failed
from tests.tcp_proxy import TcpProxy
from tests.webui.conftest import Serve
from tests.webui.server import Web

XSS = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def told(served: Web) -> Web:
    """The pages of a journal with two failed jobs and two actions, in one of which all text is markup."""
    web = served
    write(web.client, [failed("a", message=XSS), failed("b", at=NOON + 150)])
    purge = done_by(XSS, "purge", at=NOON + 170, queue=XSS, outcome="refused", what=XSS)
    write(web.client, [done_by("anna", "requeue", at=NOON + 130, ids=["a"], count=1), purge], writer="")
    assert journal_views(web.app.state.site).following.wait(60)
    return web


def listed(web: Web, path: str) -> list[str]:
    """The ids of the jobs of a page, in order."""
    page = web.http.get(path)
    assert page.status_code == 200, page.text
    return re.findall(r'<th scope="row".*?href="/jobs/([^"?]+)', page.text, re.DOTALL)


def test_markup_in_the_journal_is_text_and_actions_are_filtered(told: Web) -> None:
    for path in ("/audit", "/history", "/jobs/a"):
        assert XSS not in told.http.get(path).text
    of_anna = told.shown("/audit?filter=by:anna")
    assert ("requeue anna via web" in of_anna, "purge" in of_anna) == (True, False)


def test_a_failed_job_shows_what_the_journal_and_the_queue_know(told: Web) -> None:
    publish_failed(told.client, (message("b"), failure()))

    page = told.shown("/jobs/b")

    assert ("builtins.ValueError at pid:7@host/worker-2" in page, "no such thing" in page) == (True, True)
    assert ("Edit and requeue" in page, "Not found" in page) == (True, False)


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
        eventually(lambda: "The journal cannot be read now" in web.shown("/history"))
        assert listed(web, "/history") == ["a"]
        write(client, [failed("b")])
        proxy.listen()

        eventually(lambda: listed(web, "/history") == ["b", "a"])
        eventually(lambda: "cannot be read" not in web.shown("/history"))
