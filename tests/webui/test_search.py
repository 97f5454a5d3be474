"""The search over all states, on each broker: what it finds, what it says it did not look at, and what it refuses."""

import re
import threading
import time
from html import unescape
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract.rows import Listing
from palermo.jobs.redaction import MASK
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.site import Visit
from palermo.webui.state import search as searching
from tests.helpers import HANGS, eventually
from tests.history.written import ended, write
from tests.history.written import failed as failed_run
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web


def search(web: Web, q: str, **asked: Any) -> dict[str, Any]:
    """The API's answer once everything has been read."""

    def answer() -> dict[str, Any] | None:
        response = web.http.get("/api/search", params={"q": q, **asked})
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return None if found["reading"] else found

    return eventually(answer) or {}


def finds(web: Web, q: str, wanted: dict[str, list[str]]) -> None:
    """Assert which ids are found, by group. What another look holds at that moment is not found."""

    def found() -> bool:
        groups = search(web, q)["groups"]
        assert {each["state"]: [row["id"] for row in each["rows"]] for each in groups if each["rows"]} == wanted
        return True

    eventually(found)


def fill(web: Web) -> None:
    """An order in every state that lasts without a worker."""
    at = time.time() - 99
    timeout = failure("requests.exceptions.Timeout", "no answer from bank.example", at=int(at))
    charge = {"queue": "billing", "job": "shop.Charge", "tenant": "acme"}
    publish_failed(
        web.client,
        (replace(message("bad-1", "order 1058", **charge), preview="'order 1058'"), timeout),
        (
            message("bad-2", "order 7", job="shop.SendReceipt", tenant="acme.eu"),
            failure("KeyError", "lost", at=int(at) - 7_200),
        ),
    )
    later = due("later-1", 900, "order 1058", job="shop.SendReceipt", tenant="acme")
    schedule(web.client, later, retrying("again-1", 300, "order 1058"))
    publish(web.client, message("wait-1", "order 1058", created_at=int(at), **charge), message("wait-2", "order 9"))
    again = failed_run("over-1", at=at, message="order 1058 again")
    write(web.client, [ended("done-1", at=at, job="shop.Charge"), again])


@pytest.fixture
def filled(web: Web) -> Web:
    fill(web)
    eventually(lambda: web.ids("history") == ["over-1", "done-1"])
    return web


@pytest.fixture(scope="module")
def orders(served: Web) -> Web:
    """The same, once for the module."""
    fill(served)
    eventually(lambda: served.ids("history") == ["over-1", "done-1"])
    return served


@pytest.mark.parametrize(
    ("q", "found"),
    [
        (
            "order 1058",
            {
                "failed": ["bad-1"],
                "retrying": ["again-1"],
                "scheduled": ["later-1"],
                "waiting": ["wait-1"],
                "finished": ["over-1"],
            },
        ),
        ("done-", {"finished": ["done-1"]}),
        ("sendreceipt", {"failed": ["bad-2"], "scheduled": ["later-1"]}),
        ("queue:billing", {"failed": ["bad-1"], "waiting": ["wait-1"]}),
        ("error:Timeout", {"failed": ["bad-1"]}),
        ("tenant:=acme", {"failed": ["bad-1"], "scheduled": ["later-1"], "waiting": ["wait-1"]}),
        ("worker:*@test", {"failed": ["bad-1", "bad-2"], "retrying": ["again-1"]}),
        ("worker:pid:7@host", {"finished": ["over-1", "done-1"]}),
        ("state:done", {"finished": ["done-1"]}),
        ("state:pending queue:billing", {"waiting": ["wait-1"]}),
        ("until:1h state:failed", {"failed": ["bad-2"]}),
        ("since:1h queue:billing", {"failed": ["bad-1"], "waiting": ["wait-1"]}),
        ('"error:" 1058', {}),
    ],
)
def test_words_and_filters_find(orders: Web, q: str, found: dict[str, list[str]]) -> None:
    finds(orders, q, found)


def test_a_row_says_what_a_reader_needs_to_choose_among_jobs(orders: Web) -> None:
    [row] = search(orders, "state:failed 1058")["groups"][0]["rows"]

    assert (row["id"], row["job"], row["queue"], row["tenant"]) == ("bad-1", "shop.Charge", "billing", "acme")
    assert (row["state"], row["preview"], row["worker"]) == ("failed", "'order 1058'", "pid:1@test/worker-1")
    assert row["error"] == {"class": "requests.exceptions.Timeout", "message": "no answer from bank.example"}
    assert (row["at"] is None, row["run_at"]) == (False, None)


@pytest.mark.parametrize(
    ("q", "found"), [("queue:billing error:Timeout since:1h", "bad-1"), ("RECEIPT", "bad-2"), ("tenant:=acme", "bad-1")]
)
def test_the_page_links_to_the_list_with_the_same_filters(orders: Web, q: str, found: str) -> None:
    page = unescape(orders.http.get("/search", params={"q": q}).text)

    [to] = re.findall(r'href="(/failures\?[^"]+)"', page)
    assert re.findall(r'<tr id="row-([^"]+)"', orders.http.get(to).text) == [found]
    assert f'value="{q}"' in page
    if "queue:" in q:
        assert 'href="/search?q=error%3ATimeout%20since%3A1h" aria-label="Search without queue:billing"' in page
        assert 'href="/jobs/bad-1?queue=billing"' in page


def test_queues_are_looked_at_at_the_same_time(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    both, jobs = threading.Barrier(2), searching.listings.jobs

    def look(visit: Visit, queue: str, **asked: Any) -> Listing:
        if queue in ("billing", "mail"):
            both.wait(HANGS)
        return jobs(visit, queue, **asked)

    monkeypatch.setattr(searching.listings, "jobs", look)

    finds(filled, "state:waiting order", {"waiting": ["wait-1", "wait-2"]})


def test_the_page_shows_what_was_found_soon_and_then_the_rest(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "GLANCE", 0.0)
    monkeypatch.setattr(tuning, "RECENT", HANGS)
    go_on, asked, jobs = threading.Event(), list[str](), searching.listings.jobs

    def look(visit: Visit, queue: str, **more: Any) -> Listing:
        asked.append(queue)
        go_on.wait(HANGS)
        return jobs(visit, queue, **more)

    monkeypatch.setattr(searching.listings, "jobs", look)

    def shown() -> str:
        return filled.http.get("/search?q=order").text

    page = eventually(lambda: "over-1" in (text := shown()) and text)
    assert "Waiting jobs, which are still being searched." in page
    assert ("data-poll" in page, "wait-1" in page) == (True, False)
    go_on.set()
    eventually(lambda: "wait-1" in shown())
    assert sorted(asked) == sorted(set(asked))


@pytest.fixture(scope="module")
def behind_500(served: Web) -> Web:
    """Three scheduled jobs and three waiting ones, each behind 505 others."""
    client = served.client
    schedule(client, *(due(f"other-{nth}", 900 + nth, job="shop.Other", queue="bulk") for nth in range(505)))
    schedule(client, *(due(f"late-{nth}", 9_000 + nth, "order 77", job="shop.Late", queue="late") for nth in range(3)))
    publish(client, *(message(f"first-{nth}", job="shop.First", queue="deep") for nth in range(505)))
    publish(client, *(message(f"last-{nth}", "order 77", job="shop.Last", queue="deep") for nth in range(3)))
    return served


@pytest.mark.parametrize("q", ["job:Late", "queue:late", "queue:la* 77 state:scheduled"])
def test_scheduled_jobs_behind_500_others_are_found(behind_500: Web, q: str) -> None:
    finds(behind_500, q, {"scheduled": ["late-0", "late-1", "late-2"]})


def test_a_search_that_read_only_a_part_says_so_first_and_offers_more(behind_500: Web) -> None:
    def shown(address: str, *wanted: str) -> str:
        page = unescape(behind_500.http.get(address).text)
        return page if all(each in page for each in wanted) else ""

    said = ("aiting jobs of deep after its first 500 (8)", "due after the first 500 (", "No job matches so far.")
    page = eventually(lambda: shown("/search?q=order+77", *said))
    assert page.index("Incomplete search") < page.index("No job matches so far.")
    [more] = re.findall(r'href="(/search[^"]*)">Search the first 2,500<', page)
    deeper = eventually(lambda: shown(more, *(f"/jobs/{id}" for id in ("late-0", "late-2", "last-0", "last-2"))))
    assert "Incomplete search" not in deeper
    first, found = search(behind_500, "order 77"), search(behind_500, "order 77", depth=2_500)
    assert (first["total"], first["deeper"]) == (0, 2_500)
    assert (found["total"], found["deeper"], found["not_searched"]) == (6, None, [])
    told = search(behind_500, "tenant:nobody")["not_searched"]
    assert "running jobs, whose tenants are not known" in told


def test_the_list_of_a_long_queue_says_which_part_it_searched_and_goes_on(behind_500: Web) -> None:
    told = "0 jobs found in the first 500 of 508 jobs."
    page = behind_500.page("/queues/deep?filter=%22order+77%22", told)
    first = behind_500.http.get("/queues/deep?filter=job:shop.First").text

    [more] = re.findall(r'<a href="([^"]*)">Search the first 2,500</a>', page)
    assert "last-2" in behind_500.http.get("/queues/deep" + unescape(more)).text
    assert "1 to 50 of 500 jobs" in first
    [more] = re.findall(r'<a class="button small" href="([^"]*)" rel="next">', first)
    assert 'title="first-50"' in behind_500.http.get("/queues/deep" + unescape(more)).text


def test_a_whole_id_leads_to_its_job_and_an_unknown_one_to_a_plain_answer(web: Web) -> None:
    job = web.client.enqueue("shop.resize", ["cat.png"], queue="images")
    unknown = "00000000-0000-4000-8000-000000000000"

    assert web.http.get(f"/search?q={job.id}").headers["location"] == f"/jobs/{job.id}"
    assert [row["id"] for row in search(web, job.id[:8])["groups"][3]["rows"]] == [job.id]
    assert web.http.get(f"/search?q={unknown}").status_code == 200
    answer = web.http.get(f"/jobs/{unknown}")
    assert (answer.status_code, f'href="/search?q={unknown}"' in answer.text) == (404, True)


def test_the_field_is_empty_on_pages_that_show_no_search(orders: Web) -> None:
    for page in ("/", "/queues/mail", "/queues/mail?filter=cat", "/failures?filter=cat", "/history"):
        assert 'name="q" value="" list="search-offers"' in orders.http.get(page).text, page


def test_a_query_that_cannot_be_meant_marks_its_field(orders: Web) -> None:
    assert 'aria-invalid="true" aria-describedby="search-problem"' in orders.http.get("/search?q=que:mail").text


def test_jobs_are_found_by_their_arguments_and_never_by_hidden_ones(settings: Settings, serve: Serve) -> None:
    web = serve(replace(settings, journal="all"), redact=["*password*"])
    secret, at = {"password": "hunter2"}, time.time() - 9
    publish_failed(web.client, (message("bad-1", secret), failure()))
    web.client.enqueue("shop.login", [], secret, queue="mail")
    web.client.enqueue("shop.login", [], secret, queue="mail", delay=900)
    plain = ended("done-1", at=at, body='[{"order": 1058}]')
    both = ended("done-2", at=at, body='{"args": ["Zo\\u00eb"], "kwargs": {"password": "hunter2"}}', arguments="both")
    write(web.client, [plain, both, failed_run("over-1", at=at, body='["order 1058"]')])

    finds(web, "1058", {"finished": ["over-1", "done-1"]})
    finds(web, "zoë", {"finished": ["done-2"]})
    finds(web, "hunter2", {})
    groups = [*search(web, "job:login")["groups"], *search(web, "zoë")["groups"]]
    shown = {row["preview"] for group in groups for row in group["rows"]}
    assert shown == {f"password='{MASK}'", f"'Zoë', password='{MASK}'"}
    assert "done-1" in web.http.get("/history?filter=1058").text
    assert [row["id"] for row in web.inspector.history.list(JobFilter(text="1058"))] == ["over-1", "done-1"]
