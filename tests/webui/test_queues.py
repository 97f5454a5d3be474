"""Queues, on their page and in the API."""

import re
import time
from html import unescape
from urllib.parse import quote

import pytest

from tests.helpers import eventually
from tests.history.written import write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.server import Web

_NAMES = ["mail", "a/b", "100 %", "ä€😀", "%2F", "x" * 127, "?a=b&c#d", '"><script>alert(1)</script>']


def published(web: Web, name: str) -> None:
    """A job in a queue that may have a name with which no new queue is made."""
    publish(web.client, message("1", queue=name))


def test_the_page_of_an_address_that_there_is_not_does_not_look_again(web: Web) -> None:
    wrong, missing = web.http.get("/quues"), web.http.get("/queues/foreign")

    assert (wrong.status_code, missing.status_code) == (404, 404)
    assert "data-events" not in wrong.text
    assert "Go to the overview" in wrong.text
    assert "Go back in your browser" not in wrong.text
    assert "data-events" in missing.text


@pytest.mark.parametrize("name", _NAMES)
def test_a_queue_of_any_name_is_purged_by_the_api(served: Web, name: str) -> None:
    published(served, name)

    done = served.http.post(f"/api/queues/{quote(name, safe='')}/purge")

    assert (done.status_code, done.json()) == (200, {"removed": 1})


@pytest.mark.parametrize("name", _NAMES)
def test_a_queue_of_any_name_is_purged_by_its_form(web: Web, name: str) -> None:
    published(web, name)

    page = web.form("/queues", f"/queues/{quote(name, safe='')}/purge")

    assert "Removed 1 job from" in page.text
    assert f'hx-get="/queues/{quote(name, safe="")}"' in page.text
    assert web.inspector.size(name) == 0


def events_of(web: Web) -> str:
    """Where the page of queues hears of changes."""
    found = re.search(r'data-events="([^"]+)"', web.http.get("/queues").text)
    assert found is not None
    return unescape(found[1])


def test_a_page_is_told_at_once_of_what_has_changed_since_it_was_made(web: Web) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")
    events = events_of(web)
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")

    with web.http.stream("GET", events, params={"every": 60}, timeout=60) as stream:
        lines = [line for line, _ in zip(stream.iter_lines(), range(5), strict=False)]

    assert "event: change" in lines


def test_what_was_done_is_on_the_page_that_follows_however_soon_that_is(web: Web) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")
    web.http.get("/queues/mail")

    paused = web.form("/queues/mail", "/queues/mail/pause")
    resumed = web.form("/queues/mail", "/queues/mail/resume")

    assert '<span class="badge warn">paused' in paused.text
    assert '<span class="badge warn">paused' not in resumed.text


def test_who_paused_a_queue_and_why_is_shown_to_all(web: Web) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")
    web.form("/queues/mail", "/queues/mail/pause")

    told = web.form("/queues/mail", "/queues/mail/pause", reason="the mail server moves <b>")

    assert "mail is paused: the mail server moves &lt;b&gt;." in told.text
    eventually(lambda: "by local: <b" in web.http.get("/queues/mail").text)
    assert "the mail server moves &lt;b&gt;" in web.http.get("/queues/mail").text
    web.form("/queues/mail", "/queues/mail/resume")
    assert "the mail server moves" not in web.http.get("/queues/mail").text
    web.form("/queues", "/queues/pause", reason="an incident")
    eventually(lambda: "an incident" in web.http.get("/").text)
    assert "an incident" in web.http.get("/queues/mail").text


@pytest.mark.parametrize("which", ["", "mail/"])
def test_a_second_pause_keeps_the_first_reason(web: Web, which: str) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")

    def shown(action: str, number: int, **fields: str) -> bool:
        web.form("/queues", f"/queues/{which}{action}", **fields)
        eventually(lambda: web.http.get("/api/audit").json()["total"] == number)
        return "an incident" in web.http.get("/queues/mail").text

    assert shown("pause", 1, reason="an incident")
    assert shown("pause", 2)
    assert not shown("resume", 3)
    assert not shown("pause", 4)


def test_the_page_of_the_queue_of_failed_jobs_is_the_page_of_failures(web: Web) -> None:
    publish_failed(web.client, (message("bad"), failure("shop.Wrong", "no")))

    answer = web.http.get("/queues/failed")

    assert (answer.status_code, answer.headers["location"]) == (303, "/failures")


def test_selected_queues_are_paused_and_resumed_together(web: Web) -> None:
    for name in ("mail", "images", "bills"):
        web.client.enqueue("shop.mail", queue=name)

    paused = web.form("/queues", "/queues/pause-selected", id=["mail", "bills"], reason="a move")

    assert "Paused mail, bills." in paused.text
    assert [row["name"] for row in web.inspector.queues() if row["paused"]] == ["bills", "mail"]
    resumed = web.form("/queues", "/queues/resume-selected", id=["mail"])
    assert "Resumed mail." in resumed.text
    assert [row["name"] for row in web.inspector.queues() if row["paused"]] == ["bills"]
    assert web.form("/queues", "/queues/resume-selected").status_code == 422


def test_the_page_of_a_queue_has_its_hour_failures_and_tenants(web: Web) -> None:
    web.client.enqueue("shop.mail", queue="mail", tenant="acme")
    web.client.enqueue("shop.mail", queue="mail", tenant="acme")
    web.client.enqueue("shop.mail", queue="bills")
    work = {"kind": "counts", "at": time.time() - 60, "job": "shop.mail"}
    write(web.client, [{**work, "queue": "mail", "succeeded": 40, "failed": 1, "retried": 2}])
    publish_failed(web.client, (message("bad", queue="mail"), failure("shop.Wrong", "no")))
    eventually(lambda: "43 jobs processed in the last hour" in web.http.get("/queues/mail").text)
    eventually(lambda: 'href="/failures?queue=mail">1</a>' in web.http.get("/queues/mail").text)

    page = web.http.get("/queues/mail").text

    assert 'href="/retries?queue=mail">2</a>' in page
    assert '<th scope="row" class="whole">acme</th><td class="num fit" data-label="waiting">2</td>' in page
    assert "No worker serves this queue." in page
    assert 'aria-label="43 runs, 3 failed"' in web.http.get("/queues").text
    assert 'aria-label="43 runs, 3 failed"' in web.http.get("/").text
    assert "acme" not in web.http.get("/queues/bills").text


def test_a_button_pauses_all_queues_and_resumes_them(web: Web) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")

    paused = web.form("/queues", "/queues/pause")

    assert "Paused all queues" in paused.text
    assert "all paused" in web.http.get("/").text
    assert "/queues/mail/resume" not in web.http.get("/queues/mail").text
    assert [row["paused"] for row in web.http.get("/api/queues").json()["rows"]] == [False, True]
    resumed = web.form("/queues", "/queues/resume")
    assert "Resumed all queues" in resumed.text
    assert "all paused" not in web.http.get("/").text
    wanted = [("resume all", "local"), ("pause all", "local")]
    eventually(lambda: [(row["action"], row["by"]) for row in web.inspector.audit().rows] == wanted)


def test_the_api_pauses_and_resumes_all_queues(web: Web) -> None:
    assert web.http.post("/api/queues/pause").json() == {"all_paused": True}
    assert web.inspector.all_paused()
    assert web.http.post("/api/queues/resume").json() == {"all_paused": False}
    assert not web.inspector.all_paused()
