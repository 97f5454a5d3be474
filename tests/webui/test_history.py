"""The pages of the journal, its API and the page of a job, as a reader without JavaScript uses them, on each broker."""

import re
from typing import Any

import pika
import pytest
from msgspec.structs import replace

from palermo.client import status
from palermo.client.client import Client
from palermo.core.topology import internal
from palermo.settings.settings import Settings
from palermo.webui.pages import job
from palermo.webui.state.journal_views import journal_views
from tests.helpers import eventually
from tests.history.written import NOON, done_by, ended, enqueued, failed, write
from tests.inspector.jobs import failure, message, publish_failed
from tests.tcp_proxy import TcpProxy
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.server import Web
from tests.webui.test_scheduled_pages import XSS, shown, text_of


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


def answer(web: Web, path: str, status: int = 200, **query: Any) -> Any:
    found = web.http.get(path, params=query or None)
    assert found.status_code == status, found.text
    return found.json()


def test_finished_jobs_are_listed_newest_first_and_found_by_filters(told: Web) -> None:
    assert listed(told, "/history")[:5] == ["c", "b", "a", "a", "j-56"]
    page = shown(told, "/history")
    assert "History 61" in page
    assert "1 to 50 of 61 jobs" in page
    assert "too late" in page
    assert listed(told, "/history?page=2")[-1] == "j-00"
    assert "Page 9 is past the end: there are 61 jobs. Last page, 2" in shown(told, "/history?page=9")
    assert 'href="?page=2">Last page, 2</a>' in told.http.get("/history?page=9").text
    assert listed(told, "/history?state=retrying") == ["a"]
    assert listed(told, "/history?queue=s*&longer=1s") == ["a"]
    assert listed(told, "/history?longer=5.5s&shorter=5.5s&job=shop.*") == ["j-55"]
    assert listed(told, "/history?text=TOO+LATE") == ["c"]
    assert "No finished job matches." in shown(told, "/history?since=1m")
    assert "No finished job matches." in shown(told, "/history?until=2020-01-01T00:00Z")


def test_what_comes_is_listed_without_asking_twice(told: Web) -> None:
    write(told.client, [ended("late", at=NOON + 500, job="shop.late")])

    eventually(lambda: listed(told, "/history?job=shop.late") == ["late"])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/history?longer=soon", "longer is 'soon'"),
        ("/history?since=soon", "since is 'soon'"),
        ("/history?state=finished", "no state 'finished'"),
        ("/audit?until=soon", "until is 'soon'"),
    ],
)
def test_what_no_filter_can_mean_is_said(told: Web, path: str, said: str) -> None:
    assert told.http.get(path).status_code == 422
    assert said in answer(told, f"/api{path}", 422)["error"]


def test_what_people_did_is_listed_with_who_and_when(told: Web) -> None:
    page = told.http.get("/audit")

    assert XSS not in page.text
    text = text_of(page)
    assert re.search(r"purge queue .*refused.* pause queue bert via web mail .* requeue anna via web 1 job a ", text)
    assert "requeue anna via web" in shown(told, "/audit?by=anna")
    assert "bert via web" not in shown(told, "/audit?by=anna")
    choice = told.http.get("/audit?by=anna&action=pause").text
    assert "No action matches." in choice
    assert '<option value="pause" selected>pause queue</option>' in choice
    assert '<option value="re*" selected>re*</option>' in told.http.get("/audit?action=re*").text


def test_the_page_of_a_job_tells_its_whole_life(told: Web) -> None:
    page = told.http.get("/jobs/a")

    assert page.status_code == 200
    assert XSS not in page.text
    steps = re.findall(r'<div class="what">([^<]+)</div>', page.text)
    whole = "Enqueued Started Failed Started Progress Failed Requeue Started Done"
    assert " ".join(steps) == whole.replace("Started Progress Failed", "Progress Started Failed")
    text = text_of(page)
    assert "shop.resize done" in text
    assert "tried again in 15 s" in text
    assert "the first line" in text
    assert "40 % page 4 of 10" in text
    assert "by anna via web" in text
    assert "Not found" not in text
    assert "Ran 2.5 s" in text


def test_a_failed_job_shows_what_the_journal_and_the_queue_know(told: Web) -> None:
    publish_failed(told.client, (message("b"), failure()))

    page = shown(told, "/jobs/b")

    assert "builtins.ValueError: no such thing at pid:7@host/worker-2" in page
    assert "Edit and requeue" in page
    assert "Not found" not in page


def test_rows_and_lives_and_actions_for_programs(told: Web) -> None:
    found = answer(told, "/api/history", limit=2, text="j-5", page=2)
    assert (found["total"], [row["id"] for row in found["rows"]]) == (7, ["j-54", "j-53"])
    (row,) = answer(told, "/api/history", text="j-56")["rows"]
    assert (row["state"], row["took"], row["wait"], row["attempt"]) == ("done", 5.6, 0.25, 1)

    life = answer(told, "/api/history/a")
    kinds = "enqueued retried log progress failed action succeeded"
    assert [step["kind"] for step in life["rows"]] == kinds.split()
    assert "nobody" in answer(told, "/api/history/nobody", 404)["error"]

    assert [row["action"] for row in answer(told, "/api/audit", by="b*")["rows"]] == ["pause"]
    assert answer(told, "/api/audit")["total"] == 3


def test_the_page_of_a_job_amid_a_long_queue_tells_what_the_journal_knows(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "DEPTH", 2)
    monkeypatch.setattr(job, "DEPTH", 2)
    jobs = [web.client.enqueue("shop.mail", queue="mail") for _ in range(7)]
    path = f"/jobs/{jobs[3].id}"

    eventually(lambda: "was not looked up" in web.http.get(path).text)
    page = shown(web, path)

    assert "The journal tells that this job waits" in page
    assert all(text in page for text in ("Enqueued", "Waiting", "shop.mail", "mail", "Cancel"))
    assert "was not looked up" not in shown(web, f"/jobs/{jobs[6].id}")
    web.client.run(lambda broker: broker.purge("mail"))
    eventually(lambda: "not here any more" in web.http.get(path).text)


def test_where_nothing_is_written_down_the_pages_say_so(settings: Settings, serve: Serve) -> None:
    web = serve(replace(settings, journal="off"))

    assert 'the setting journal is "off" here' in shown(web, "/history")
    assert 'the setting journal is "off" here' in shown(web, "/audit")
    assert web.http.get("/jobs/nobody").status_code == 404
    assert "journal" in answer(web, "/api/history", 409)["error"]


def test_a_journal_that_is_deleted_under_the_pages_comes_back_by_itself(
    rabbitmq_url: str, exchange: str, serve: Serve
) -> None:
    web = serve(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=BROKER_PATIENCE))
    write(web.client, [failed("old")])
    eventually(lambda: listed(web, "/history") == ["old"])

    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        connection.channel().queue_delete(internal(exchange, "journal"))
    eventually(lambda: listed(web, "/history") == [])
    write(web.client, [failed("new")])

    eventually(lambda: listed(web, "/history") == ["new"])


def test_while_the_broker_is_away_the_pages_show_what_was_read(rabbitmq_url: str, exchange: str, serve: Serve) -> None:
    address = pika.URLParameters(rabbitmq_url)
    settings = Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=BROKER_PATIENCE)
    with TcpProxy(address.host, address.port) as proxy, Client(settings) as client:
        write(client, [failed("a")])
        web = serve(Settings(url=rabbitmq_url.replace(f":{address.port}/", f":{proxy.port}/"), exchange=exchange))
        eventually(lambda: listed(web, "/history") == ["a"])

        proxy.refuse()
        proxy.hang_up(reset=True)
        eventually(lambda: "The journal cannot be read at the moment" in shown(web, "/history"))
        assert listed(web, "/history") == ["a"]
        write(client, [failed("b")])
        proxy.listen()

        eventually(lambda: listed(web, "/history") == ["b", "a"])
        eventually(lambda: "cannot be read" not in shown(web, "/history"))


def test_a_page_is_told_at_once_of_what_came_while_it_was_made(web: Web) -> None:
    write(web.client, [failed("a")])
    eventually(lambda: listed(web, "/history") == ["a"])
    for page in ("/history", "/jobs/a"):
        (events,) = re.findall(r'data-events="([^"]+)"', web.http.get(page).text)
        write(web.client, [failed("a")])
        with web.http.stream("GET", events.replace("&amp;", "&") + "&every=1") as stream:
            assert any(line == "event: change" for line in stream.iter_lines())
