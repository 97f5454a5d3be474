"""Queues, on their pages and in the API: what is told of one, done to it, listed of many, and what is wrong now."""

import html
import re
import signal
import time
from html import unescape
from urllib.parse import quote

import pytest

from palermo.contract.rows import Row
from palermo.inspector.doctor import examine
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.state.live_state import OldestJobs
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.history.written import write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due
from tests.webui.server import Web

_NAMES = ["mail", "a/b", "100 %", "ä€😀", "%2F", "x" * 127, "?a=b&c#d", '"><script>alert(1)</script>']


def listed(web: Web, address: str) -> list[str]:
    """The queues that a page lists, in its order."""
    return re.findall(r'<th scope="row" class="whole"><a href="[^"]*">([^<]*)</a>', web.http.get(address).text)


def queue_rows(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    """Let the broker tell of these queues; each has a worker and ten waiting jobs, unless its row says otherwise."""
    usual = {"pending": 10, "in_progress": 0, "workers": 1, "paused": False}
    whole = sorted((usual | row for row in rows), key=lambda row: row["name"])
    for module in ("context", "queues"):
        monkeypatch.setattr(f"palermo.inspector.{module}.queue_rows", lambda found: whole)


def many(count: int) -> list[str]:
    return [f"q-{number:03}" for number in range(count)]


def paused(web: Web) -> list[str]:
    return [row["name"] for row in web.inspector.queues.list() if row["paused"]]


# -- one queue


@pytest.mark.parametrize("name", _NAMES)
def test_a_queue_of_any_name_is_purged_by_the_api_and_by_its_form(served: Web, name: str) -> None:
    path = f"/queues/{quote(name, safe='')}"

    publish(served.client, message("1", queue=name))
    done = served.http.post(f"/api{path}/purge")
    publish(served.client, message("2", queue=name))
    page = served.form("/queues", f"{path}/purge")

    assert (done.status_code, done.json()) == (200, {"removed": 1})
    assert "Removed 1 job from" in page.text
    assert f'hx-get="{path}"' in page.text
    assert served.inspector.queues.size(name) == 0


def test_only_the_page_of_an_address_that_there_may_be_looks_again(web: Web) -> None:
    wrong, missing = web.http.get("/quues"), web.http.get("/queues/foreign")
    publish_failed(web.client, (message("bad"), failure("shop.Wrong", "no")))
    failed = web.http.get("/queues/failed")

    assert (wrong.status_code, missing.status_code) == (404, 404)
    assert ("data-events" in wrong.text, "data-events" in missing.text) == (False, True)
    assert (failed.status_code, failed.headers["location"]) == (303, "/failures")


def test_a_queue_has_its_own_hour_rates_failures_and_tenants(web: Web) -> None:
    for queue, tenant in (("mail", "acme"), ("mail", "acme"), ("bills", None)):
        web.client.enqueue("shop.mail", queue=queue, tenant=tenant)
    work = {"kind": "counts", "at": time.time() - 30, "job": "shop.mail"}
    mail = {**work, "queue": "mail", "enqueued": 4_030, "succeeded": 400, "failed": 1, "retried": 2}
    write(web.client, [mail, {**work, "queue": "bills", "enqueued": 403}])
    publish_failed(web.client, (message("bad", queue="mail"), failure("shop.Wrong", "no")))
    told = ("403 jobs processed in the last hour", 'href="/failures?filter=queue:=mail">1</a>')
    page = web.page("/queues/mail", *told)
    assert 'href="/retries?filter=queue:=mail">2</a>' in page
    assert '<th scope="row" class="whole">acme</th><td class="num fit" data-label="waiting">2</td>' in page
    assert "No worker serves this queue." in page
    for path in ("/queues", "/"):
        assert 'aria-label="403 runs, 3 failed"' in web.http.get(path).text
    assert "acme" not in web.http.get("/queues/bills").text

    cells = r'<th scope="row".*?>(mail|bills)</a>.*?data-label="in">([\d,.]+)</td>.*?data-label="out">([\d,.–]+)</td>'

    def rates() -> dict[str, list[float]]:
        found = re.findall(cells, web.http.get("/queues").text, re.DOTALL)
        known = {name: [float(cell.replace(",", "").replace("–", "0")) for cell in rate] for name, *rate in found}
        return known if known["bills"][0] else {}

    (mail_in, mail_out), (bills_in, _) = (eventually(rates)[name] for name in ("mail", "bills"))
    assert mail_in / mail_out == pytest.approx(10, rel=0.1)
    assert mail_in / bills_in == pytest.approx(10, rel=0.1)


# -- pausing


@pytest.mark.parametrize("which", ["", "mail/"], ids=["all queues", "one queue"])
def test_who_paused_and_why_is_shown_until_it_is_resumed(web: Web, which: str) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")
    why = "the mail server moves <b>"

    def why_after(action: str, number: int, **fields: str) -> bool:
        done = web.form("/queues", f"/queues/{which}{action}", **fields)
        # However soon the page comes that follows, it shows what was done.
        badge = "paused" if which else "all paused"
        assert (f'<span class="badge warn">{badge}' in done.text) == (action == "pause")
        assert "moves <b>" not in done.text
        eventually(lambda: web.api("audit")["total"] == number)
        return f"by local: {why}" in web.shown("/queues/mail")

    assert not why_after("pause", 1)
    assert why_after("pause", 2, reason=why)
    assert why_after("pause", 3)
    assert ("all paused" in web.http.get("/").text) == (not which)
    assert ("/queues/mail/resume" in web.http.get("/queues/mail").text) == bool(which)
    assert not why_after("resume", 4)
    assert not why_after("pause", 5)
    assert {row["by"] for row in web.inspector.history.audit().rows} == {"local"}


def test_selected_queues_are_paused_and_resumed_and_page_and_filter_stay(web: Web) -> None:
    publish(web.client, *(message(name, queue=name) for name in ("mail", *many(150))))
    page = "/queues?name=q-&page=2"
    text = unescape(web.http.get(page).text)
    pause, resume = re.findall(r'action="(/queues/(?:pause|resume)-selected[^"]*)"', text)[::-1]

    done = web.form(page, pause, id=["q-120", "q-121"], reason="a move")
    assert "Paused q-120, q-121." in done.text
    assert str(done.url).endswith(page)
    assert paused(web) == ["q-120", "q-121"]
    done = web.form(page, resume, id=["q-120"])
    assert "Resumed q-120." in done.text
    assert str(done.url).endswith(page)
    assert paused(web) == ["q-121"]

    for action, whether in (("pause", True), ("resume", False)):
        assert web.http.post(f"/api/queues/{action}").json() == {"all_paused": whether}
        assert web.inspector.queues.all_paused() == whether
        rows = web.api("queues")["rows"]
        assert [row["name"] for row in rows if row["paused"]] == (["mail", *many(150)] if whether else ["q-121"])


# -- many queues


def test_of_many_queues_100_are_on_a_page_and_all_are_counted(web: Web) -> None:
    names = [*many(250), "z"]
    publish(web.client, *(message(name, queue=name) for name in names))

    overview, second, last = (web.http.get(path).text for path in ("/", "/queues?page=2", "/queues?page=3"))

    assert listed(web, "/") == [*names[:10], "failed"]
    assert listed(web, "/queues") == [*names[:100], "failed"]
    assert listed(web, "/queues?page=2") == [*names[100:200], "failed"]
    assert listed(web, "/queues?page=3") == [*names[200:], "failed"]
    assert '<a class="push small" href="/queues">All 251</a>' in overview
    assert '<dd><a href="/waiting">251</a></dd>' in overview
    assert 'href="?page=3" rel="next">Next</a>' in second
    assert 'hx-get="/queues?page=2"' in second
    assert "201 to 251 of 251 queues" in last
    assert "Page 9 is past the end" in web.http.get("/queues?page=9").text
    assert web.api("queues")["total"] == 252

    # A filter stays from page to page.
    found = unescape(web.http.get("/queues?name=Q-").text)
    assert "1 to 100 of 250 queues" in found
    assert 'href="?name=Q-&page=2" rel="next"' in found
    assert listed(web, "/queues?name=Q-&page=3") == many(250)[200:]
    assert listed(web, "/queues?name=nothing") == []


def test_queues_in_trouble_and_busy_ones_come_first_others_by_name(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(web.client, message("1", queue="z-late", created_at=int(time.time()) - 2_000))
    queue_rows(
        monkeypatch,
        *({"name": name} for name in ("failed", *many(150))),
        {"name": "x-empty", "pending": 0, "workers": 0},
        {"name": "x-empty-and-paused", "pending": 0, "paused": True},
        {"name": "y-paused", "paused": True},
        {"name": "z-late"},
        {"name": "z-unserved", "workers": 0},
        {"name": "y-unserved", "workers": 0},
    )
    trouble = ["y-unserved", "z-unserved", "z-late", "y-paused"]

    for address, more in (("/", 6), ("/queues", 96)):
        wanted = [*trouble, *many(more), "failed"]
        eventually(lambda address=address, wanted=wanted: listed(web, address) == wanted)  # type: ignore[misc]
    assert listed(web, "/queues?page=2") == [*many(150)[96:], "x-empty", "x-empty-and-paused", "failed"]

    busy = [f"busy-{number:02}" for number in range(20)]
    troubled, at_work = (
        ({"name": name, "workers": 0} for name in many(118)),
        ({"name": name, "in_progress": 2} for name in busy),
    )
    queue_rows(monkeypatch, *troubled, *at_work, {"name": "a-empty", "pending": 0, "workers": 0})

    # More than 100 are in trouble, and busy ones have their places on the first page.
    eventually(lambda: listed(web, "/queues") == [*many(80), *busy])
    assert listed(web, "/queues?page=2") == [*many(118)[80:], "a-empty"]
    assert listed(web, "/") == [*many(5), *busy[:5]]

    # Of many queues of failed jobs those with jobs are shown.
    apart = [f"failed:{name}" for name in many(150)]
    rows = [{"name": name, "pending": name.endswith("9")} for name in apart]
    queue_rows(monkeypatch, {"name": "mail"}, {"name": "failed", "pending": 0}, *rows)

    eventually(lambda: listed(web, "/queues")[:17] == ["mail", *apart[9::10], "failed"])
    assert len(listed(web, "/queues")) == 101
    assert "And 51 more queues of failed jobs." in web.http.get("/queues").text


def test_oldest_jobs_are_known_of_queues_in_front_or_seen_before(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    names = many(50)
    publish(web.client, *(message(name, queue=name) for name in names))
    front, last = [{"name": name, "pending": 1} for name in names], {"name": names[-1], "pending": 1}
    oldest = OldestJobs(web.inspector, patience=HANGS)

    assert list(oldest.of(front)) == names[:20]
    assert [*oldest.of([last])] == names[-1:]
    assert set(oldest.known()) == {*names[:20], names[-1]}
    oldest.of([last | {"pending": 0}])
    assert set(oldest.known()) == set(names[:20])
    monkeypatch.setattr(tuning, "MINUTE", -1.0)
    oldest.of([last])
    assert set(oldest.known()) == {names[-1]}


# -- problems


def test_a_queue_whose_only_worker_is_quiet_is_a_problem_on_all_pages(web: Web, rig: Rig) -> None:
    worker = rig.worker("-q", "mail")
    eventually(lambda: rig.workers() != [])
    worker.send(signal.SIGTSTP)
    eventually(lambda: [row["state"] for row in rig.workers()] == ["quiet"])
    publish(web.client, message("1"), message("2"))
    name = rig.only_worker()["id"]
    text = f"2 jobs wait, and no worker takes them: {name} is quiet"

    eventually(lambda: text in [row["text"] for row in web.http.get("/api/problems").json()["rows"]])

    assert "workers take no jobs</span>" in web.http.get("/queues").text
    assert text in html.unescape(web.http.get("/problems").text)
    findings = [finding.text for finding in examine(web.client, [])]
    assert {text, f"1 worker, all answering; taking no jobs: {name} is quiet"} <= {*findings}


def test_a_job_that_fails_often_and_a_pause_lead_to_the_pages_that_help(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palermo.inspector.problems.DUE", 0.0)
    publish(web.client, message("1"))
    publish(web.client, due("s1", 1.0))
    web.inspector.queues.pause("mail")
    counts = {"queue": "mail", "job": "shop.send", "succeeded": 20, "failed": 5}
    write(web.client, [{"kind": "counts", "at": time.time(), **counts}])

    page = web.page("/problems", "5 of 25 runs")
    assert "paused, and 1 job waits in it" in page
    assert web.api("jobs/1/status")["reason"].startswith("queue mail: paused, and 1 job waits in it. To resume it,")
    assert 'href="/failures?filter=job:=shop.send+since:15m"' in page
    eventually(lambda: "overdue" in [row["kind"] for row in web.api("problems")["rows"]])
    web.page("/problems", "no worker moves it to its queue")


def test_read_only_pages_store_or_ask_little(settings: Settings, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    web = serve(settings, read_only=True)
    page = web.http.get("/problems").text
    assert ("The broker is not checked" in page, "passed checks" in page) == (True, False)

    publish(web.client, message("1"))
    web.http.get("/problems")
    monkeypatch.setattr(OldestJobs, "of", lambda *given: pytest.fail("a queue was read"))
    web.page("/audit", 'nav-problems">1<')
