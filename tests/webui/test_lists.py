"""Lists on pages and in the API: what is in them, and that a form without JavaScript shows the list again as it was."""

import re
import time
from collections.abc import Callable
from html import escape, unescape
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from palermo.contract.broker import Broker
from palermo.core.message import Message
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.operations import operations
from palermo.webui.site import Role, User
from palermo.webui.state.journal_views import journal_views
from tests.contract.workers import consume
from tests.helpers import eventually
from tests.history.written import ended, failed, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web, text_of
from tests.webui.test_search import fill

pytestmark = pytest.mark.usefixtures("patient")

#: The jobs that a list has with a filter: on its page, in its order, and in the API.
LISTS = {
    "/failures": ["bad-1", "bad-2"],
    "/failures?filter=queue:bill*": ["bad-1"],
    "/failures?filter=until:1h": ["bad-2"],
    "/scheduled": ["later-1"],
    "/scheduled?filter=queue:m*+job:=shop.send": [],
    "/scheduled?filter=due_from:10m": ["later-1"],
    "/retries": ["again-1"],
    "/retries?filter=due_from:10m": [],
    "/history": ["over-1", "done-1"],
    "/history?filter=state:done": ["done-1"],
    "/history?filter=shorter:10s": ["over-1", "done-1"],
    "/queues/billing": ["wait-1"],
    "/queues/mail?newest=1": ["wait-2"],
}

#: Lists of which no page is the ninth.
PAGED = ("/scheduled", "/retries", "/queues/billing", "/failures", "/failures?by=groups", "/history")


def ids(prefix: str, count: int = 101) -> list[str]:
    """Ids as long as programs may make them."""
    return [f"{prefix}-{nth:03}-".ljust(250, "x") for nth in range(count)]


def query_of(answer: httpx.Response) -> dict[str, str]:
    return dict(parse_qsl(answer.url.query.decode()))


def link(page: httpx.Response, to: str) -> str:
    """The first link of a page to an address that begins so."""
    return next(each for each in map(unescape, re.findall(r'href="([^"]+)"', page.text)) if each.startswith(to))


@pytest.fixture(scope="module")
def orders(served: Web) -> Web:
    """The pages of an order in every state."""
    fill(served)
    return served


@pytest.mark.parametrize("address", LISTS)
def test_the_page_and_the_api_list_the_same_jobs(orders: Web, address: str) -> None:
    wanted = LISTS[address]
    path, _, query = address[1:].partition("?")
    path = path.replace("failures", "failed") + ("/jobs" if path.startswith("queues/") else "")
    query += "&retries=false" if path == "scheduled" else ""

    def listed() -> bool:
        page = orders.http.get(address)
        assert page.status_code == 200
        assert re.findall(r'href="/jobs/([^"?]+)', page.text) == wanted
        assert sorted(orders.ids(f"{path}?{query}")) == sorted(wanted)
        return True

    eventually(listed)


def test_waiting_jobs_of_all_queues_are_found_by_the_filter(orders: Web) -> None:
    eventually(lambda: 'href="/jobs/wait-1' in orders.http.get("/waiting?filter=queue:billing").text)
    assert "No waiting job matches." in orders.http.get("/waiting?filter=job:none").text
    assert 'href="/queues/billing"' in orders.http.get("/waiting").text
    assert orders.http.get("/waiting?filter=state:failed").status_code == 422


@pytest.mark.parametrize("address", PAGED)
def test_a_page_past_the_end_leads_to_the_last_one(orders: Web, address: str) -> None:
    def past_the_end() -> bool:
        page = orders.http.get(f"{address}{'&' if '?' in address else '?'}page=9").text
        return "Page 9 is past the end" in page and 'page=1">' in page

    eventually(past_the_end)
    assert "is past the end" not in orders.http.get(address).text


def test_a_form_on_failed_jobs_keeps_page_and_filter(web: Web) -> None:
    publish_failed(web.client, *((message(f"f{nth:02}", nth), failure()) for nth in range(70)))
    listed = {"filter": "queue:mail", "limit": "50", "page": "2"}
    page = web.http.get("/failures", params=listed)

    requeued = web.press(page, "/failures/f19/requeue")
    asked = web.http.get(link(requeued, "/failures/confirm?act=discard&id=f18"))
    discarded = web.press(asked, "/failures/act")
    chosen = web.press(discarded, "/failures/confirm", act="requeue", id=["f17", "f16"])
    several = web.press(chosen, "/failures/act")
    edit = web.http.get(link(several, "/failures/f15/edit"))
    # What takes longer than the form waits.
    [command, *_] = operations(web.app.state.site)._all
    progress = web.http.get(f"/failures/operations/{command}", params=listed)

    assert ["Requeued 1 job." in requeued.text, "Discarded 1 job." in discarded.text] == [True, True]
    assert "Requeued 2 jobs." in several.text
    assert [query_of(each) for each in (requeued, discarded, several)] == [listed] * 3
    pages = [web.http.get(link(each, "/failures?filter")) for each in (asked, chosen, edit, progress)]
    assert [query_of(page) for page in pages] == [listed] * 4


def test_the_groups_are_shown_again_after_one_of_them_was_discarded(web: Web) -> None:
    publish_failed(web.client, (message("a"), failure("KeyError")), (message("b"), failure("OSError")))
    page = web.http.get("/failures?by=groups&filter=queue:mail")
    discard = link(page, "/failures/confirm?act=discard&all=1&filter=queue:mail+group:")

    done = web.press(web.http.get(discard), "/failures/act")

    assert "Discarded 1 job." in done.text
    assert query_of(done) == {"by": "groups", "filter": "queue:mail"}
    assert len(re.findall(r'<tr id="group-', done.text)) == 1


def test_while_jobs_are_read_pages_say_how_far_and_do_not_load_themselves(web: Web) -> None:
    publish_failed(web.client, (message("a"), failure()), (message("b"), failure()))
    question = "/failures/confirm?act=requeue&all=1"
    with failed_jobs(web.app.state.site).view.exclusive():  # No reading begins meanwhile.
        early = web.http.get(question)
        listed = web.http.get("/api/failed")
        others = [web.http.get(path).text for path in ("/failures", "/search?q=a")]

    assert (early.status_code, listed.status_code) == (503, 503)
    assert re.findall("<h1>(.*)</h1>", early.text) == ["Not ready yet"]
    assert "the failed jobs are still being read (0 of 2 so far)" in early.text
    assert f'<noscript><a href="{escape(question)}">Load again</a></noscript>' in early.text
    for page in (early.text, *others):
        assert ('http-equiv="refresh"' in page, "Load again" in page) == (False, True)
    assert listed.json() == {
        "error": "the failed jobs are still being read (0 of 2 so far). Try again in a few seconds."
    }
    assert "Requeue 2 jobs" in web.http.get(question).text


@pytest.mark.parametrize(
    ("name", "act", "done"), [("scheduled", "cancel", "Cancelled 1 job."), ("retries", "give%20up", "Gave up 1 job.")]
)
def test_scheduled_jobs_and_retries_keep_page_and_filter(web: Web, name: str, act: str, done: str) -> None:
    make: Callable[..., Message] = due if name == "scheduled" else retrying
    schedule(web.client, *(make(f"j{nth:03}", 3_600 + nth, job="shop.send") for nth in range(110)))
    listed = {"filter": "job:shop.*", "page": "2"}
    page = web.http.get(f"/{name}", params=listed)
    [_, other, *_] = re.findall(r'<tr id="row-([^"]+)"', page.text)

    now = web.press(page, f"/{name}/act?")
    asked = web.http.get(link(now, f"/{name}/confirm?act={act}&id={other}"))
    cancelled = web.press(asked, f"/{name}/act")
    chosen = web.press(cancelled, f"/{name}/confirm", act="move", id=["j060", "j061"])
    refused = web.press(chosen, f"/{name}/act", when="soon")
    moved = web.press(refused, f"/{name}/act", when="5d")

    assert ["Enqueued 1 job." in now.text, done in cancelled.text] == [True, True]
    assert (refused.status_code, "Moved 2 jobs." in moved.text) == (422, True)
    assert [query_of(each) for each in (now, cancelled, moved)] == [listed] * 3
    assert [query_of(web.http.get(link(each, f"/{name}?filter"))) for each in (asked, chosen, refused)] == [listed] * 3


def test_waiting_jobs_are_shown_at_the_same_page_and_order(web: Web) -> None:
    web.client.enqueue_many([("shop.send", [nth], {}) for nth in range(60)], queue="mail")
    eventually(lambda: web.http.get("/queues/mail").status_code == 200)
    listed = {"newest": "1", "page": "2"}
    page = web.http.get("/queues/mail", params=listed)
    chosen = re.findall(r'name="id" value="([^"]+)"', page.text)[:2]

    asked = web.press(page, "/queues/mail/confirm", act="move", id=chosen)
    refused = web.press(asked, "/queues/mail/act", queue="failed")
    unserved = web.press(refused, "/queues/mail/act", queue="slow")
    moved = web.press(unserved, "/queues/mail/act", queue="slow")
    paused = web.press(moved, "/queues/mail/pause")
    resumed = web.press(paused, "/queues/mail/resume")

    assert (refused.status_code, "Moved 2 jobs." in moved.text) == (422, True)
    assert [query_of(each) for each in (moved, paused, resumed)] == [listed] * 3
    assert [query_of(web.http.get(link(each, "/queues/mail?n"))) for each in (asked, refused, unserved)] == [listed] * 3


def test_keys_and_tenants_are_shown_at_the_same_page(web: Web) -> None:
    for nth in range(101):
        web.client.enqueue("shop.sync", [nth], unique="until_done", unique_key=f"k{nth:03}")
    publish(web.client, *(message(f"{nth}", tenant=f"t{nth:03}", queue="api") for nth in range(101)))
    keys, tenants = {"text": "sync:k", "page": "2"}, {"queue": "api", "page": "2"}

    opened = web.http.get(link(web.http.get("/unique", params=keys), "/unique?text=sync%3Ak&page=2&ask=free"))
    freed = web.press(opened, "/unique/free")
    cleared = web.press(web.http.get("/tenants", params=tenants), "/tenants/api/clear")

    assert " open" in opened.text.partition('<dialog id="free-')[2].partition(">")[0]
    assert ("Freed shop.sync:k100" in freed.text, "Removed 1 job" in cleared.text) == (True, True)
    assert [query_of(freed), query_of(cleared)] == [keys, tenants]


def test_a_page_of_jobs_with_long_ids_is_selected_as_a_whole(web: Web) -> None:
    """As a browser sends it without JavaScript: the ids of 100 rows are longer than any address."""
    publish_failed(web.client, *((message(id), failure()) for id in ids("failed")))
    schedule(web.client, *(due(id, 3_600) for id in ids("later")))
    for id in ids("wait", 25):
        web.client.enqueue("shop.send", [], queue="slow", id=id)
    eventually(lambda: web.http.get("/queues/slow").status_code == 200)

    for page, to, act, done in (
        ("/failures?limit=100", "/failures", "discard", "Discarded 100 jobs."),
        ("/scheduled", "/scheduled", "cancel", "Cancelled 50 jobs."),
        ("/queues/slow", "/queues/slow", "cancel", "Cancelled 25 jobs."),
    ):
        shown = web.http.get(page)
        chosen = [unescape(id) for id in re.findall(r'name="id" value="([^"]+)"', shown.text)]
        asked = web.press(shown, f"{to}/confirm", act=act, id=chosen)
        assert (asked.status_code, asked.history) == (200, []), page
        assert done in web.press(asked, f"{to}/act").text, page

    assert (len(web.inspector.failed.list()), len(web.inspector.scheduled.list())) == (1, 51)


# -- many waiting jobs at once


CONFIRM = "/queues/mail/confirm"


@pytest.fixture
def filled(web: Web) -> Web:
    return fill_queue(web)


def fill_queue(web: Web) -> Web:
    """Six jobs of two names in turn."""
    for nth in range(6):
        name = "shop.mail.Send" if nth % 2 else "shop.images.Resize"
        web.client.enqueue(name, [f"to-{nth}"], {"password": "hunter2"}, queue="mail", id=f"j{nth}")
    # The pages know a queue from a snapshot that may be a moment old.
    eventually(lambda: web.http.get("/queues/mail").status_code == 200)
    return web


def listed(web: Web, queue: str = "mail") -> list[str]:
    return [row["id"] for row in web.inspector.jobs.list(queue).rows]


def act(web: Web, query: str, **more: Any) -> str:
    """Ask on the page of this query, and confirm; what the next page says."""
    return text_of(web.press(web.http.get(f"{CONFIRM}?{query}"), "/queues/mail/act", **more))


def test_all_that_match_the_filter_of_the_page_are_meant_and_no_others(filled: Web) -> None:
    shown = filled.shown("/queues/mail?filter=job:shop.mail.*")
    assert ("to-1" in shown, "to-0" in shown) == (True, False)
    hidden = filled.http.get(f"{CONFIRM}?act=discard&all=1&filter=hunter2", follow_redirects=True)
    assert "No waiting job matches any more." in text_of(hidden)

    assert "Cancelled 1 job." in act(filled, "act=cancel&all=1&filter=TO-2")
    states = {row["id"]: row["state"] for row in filled.inspector.jobs.list("mail").rows}
    assert [id for id, state in states.items() if state == "cancelled"] == ["j2"]

    asked = filled.shown(f"{CONFIRM}?act=discard&all=1&filter=job:shop.mail.*")
    assert "Discard 3 jobs of mail?" in asked
    assert "Filter: job:shop.mail.*" in asked
    assert "Discarded 3 jobs." in act(filled, "act=discard&all=1&filter=job:shop.mail.*")
    eventually(lambda: listed(filled) == ["j0", "j2", "j4"])


def test_the_number_has_to_be_typed_when_many_are_meant(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "UNTYPED", 5)

    assert "Type their number, 6, to confirm" in filled.shown(f"{CONFIRM}?act=cancel&all=1")
    assert "6 jobs would change" in act(filled, "act=discard&all=1", typed="5")
    assert len(listed(filled)) == 6
    assert "Discarded 6 jobs." in act(filled, "act=discard&all=1", typed="6 jobs")
    assert listed(filled) == []


def test_a_count_says_how_far_it_looked(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "DEPTH", 2)

    asked = filled.shown(f"{CONFIRM}?act=discard&all=1&filter=job:shop.mail.*")

    assert "Discard 1 job of mail?" in asked
    assert "Only the first 2 jobs were counted; matching jobs among the other 4 are included too" in asked
    assert "Discarded 3 jobs." in act(filled, "act=discard&all=1&filter=job:shop.mail.*")


def test_a_move_to_a_mistyped_queue_asks_and_makes_no_queue(filled: Web) -> None:
    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    filled.client.run(serve)
    eventually(lambda: "No worker serves legacy" not in text_of(filled.http.get("/queues/legacy")))
    page = filled.http.get(f"{CONFIRM}?act=move&id=j1")

    def asked() -> httpx.Response:
        answer = filled.press(page, "/queues/mail/act", queue="legcy")
        assert (answer.status_code, "mean 'legacy'" in text_of(answer)) == (422, True)
        return answer

    # The pages know which queues are served from a snapshot that may be a moment old.
    answer = eventually(asked)
    assert 'name="queue" aria-invalid="true" aria-describedby="confirm-queue-problem" autofocus' in answer.text

    assert len(listed(filled)) == 6
    assert "legcy" not in [row["name"] for row in filled.inspector.queues.list()]
    again = filled.press(answer, "/queues/mail/act", queue="other")
    assert "No worker serves queue 'other'." in text_of(again)
    assert "Moved 1 job." in text_of(filled.press(again, "/queues/mail/act", queue="other"))
    assert "Moved 1 job." in act(filled, "act=move&id=j2", queue="legacy")


def test_an_operator_moves_and_cancels_and_only_an_administrator_discards(settings: Settings, serve: Serve) -> None:
    web = fill_queue(serve(settings, auth=lambda request: User("olga", Role.OPERATOR)))

    page = web.http.get("/queues/mail").text
    assert ("Move selected" in page, "Discard selected" in page) == (True, False)
    assert "requires the admin role" in act(web, "act=discard&id=j1")
    assert len(listed(web)) == 6
    assert "Cancelled 1 job." in act(web, "act=cancel&id=j1")


def test_a_requeue_shows_what_its_jobs_have_come_to(web: Web) -> None:
    publish_failed(web.client, *((message(id), failure()) for id in "abcd"))
    journal_views(web.app.state.site).following.wait(60)
    page = web.press(web.http.get("/failures"), "/failures/confirm", act="requeue", id=[*"abcd"])

    web.press(page, "/failures/act")
    assert "4 requeued jobs: 0 succeeded, 0 failed again, 4 waiting or running." in web.shown("/failures")
    at = time.time()
    write(web.client, [ended("a", at=at), failed("b", at=at), failed("c", "retried", at=at, delay=9)])

    told = "4 requeued jobs: 1 succeeded, 1 failed again, 2 waiting or running."
    eventually(lambda: told in web.shown("/failures"))
    [command] = operations(web.app.state.site)._all
    assert told in web.shown(f"/failures/operations/{command}")


def test_a_list_of_failed_jobs_counts_the_names_in_it_and_opens_on_groups(web: Web) -> None:
    failures = {"KeyError": 30, "TimeoutError": 9}
    for error, number in failures.items():
        jobs = (message(f"{error}-{nth}", queue="mail" if nth % 3 else "slow") for nth in range(number))
        publish_failed(web.client, *((job, failure(error)) for job in jobs))

    def facets(address: str) -> list[tuple[str, str]]:
        page = web.http.get(address).text
        return re.findall(r'href="\?(\S*)" title="\w+"><bdi>.*?<span class="count">(\d+)', page)

    counted = [("error:=KeyError", 30), ("error:=TimeoutError", 9), ("queue:=mail", 26), ("queue:=slow", 13)]
    eventually(lambda: facets("/failures") == [(f"filter={name}", f"{number}") for name, number in counted])
    both = facets("/failures?filter=error:TimeoutError")
    assert both == [("filter=error:TimeoutError+queue:=mail", "6"), ("filter=error:TimeoutError+queue:=slow", "3")]
    assert "1 to 2 of 2 groups" in web.shown("/failures")
    for address in ("/failures?by=jobs", "/failures?page=1"):
        assert "1 to 20 of 39 failed jobs" in web.shown(address)


def test_the_finished_jobs_are_counted_by_the_names_in_them(web: Web) -> None:
    write(web.client, [ended("a"), ended("b", queue="slow"), failed("c"), failed("d", "retried")])

    eventually(lambda: "State done 2 failed 1 Queue mail 2 slow 1 Job" in web.shown("/history").replace("  ", " "))
    narrowed = re.findall(r'href="(\?\S*)" title="\w+"><bdi>', web.http.get("/history").text)
    assert [web.http.get(f"/history{query}").status_code for query in narrowed] == [200] * 4


def test_a_range_of_time_is_kept_from_one_list_to_the_others(web: Web) -> None:
    page = web.http.get("/history?filter=job:shop.*+since:2h&until=2030-01-01T00:00Z").text

    form = page.split("Time range")[1].split("</form>")[0]
    shown = dict(re.findall(r'name="(since|until|filter)" value="([^"]*)"', form))
    assert shown == {"filter": "job:shop.*", "since": "2h", "until": "2030-01-01T00:00Z"}
    for path in ("/failures", "/history", "/audit"):
        assert f'href="{path}?since=2h&amp;until=2030-01-01T00%3A00Z"' in page
    assert 'href="/running"' in page
