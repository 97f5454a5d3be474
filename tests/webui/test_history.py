"""The pages and the API of the journal, of statistics and of job classes, as a reader without JavaScript uses them."""

import html
import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

import palermo
from palermo.client.client import Client
from palermo.contract.rows import iso_instant
from palermo.core.durations import Durations
from palermo.history.series import Cell, Tally
from palermo.jobs import registry
from palermo.settings.settings import Settings
from palermo.webui.render.charts import durations_plot, runs_plot
from palermo.webui.state.journal_views import journal_views
from tests.helpers import eventually
from tests.history.written import NOON, counts, done_by, ended, failed, write
from tests.history.written import failed as failed_run
from tests.inspector.jobs import failure, message, publish, publish_failed
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

    assert "builtins.ValueError at pid:7@host/worker-2" in page
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


_NASTY = "<b>&\"a/b' ?window=x"


def counted(job: str, **numbers: Any) -> Any:
    return counts(time.time() - 60, job=job, **numbers)


@pytest.fixture
def send() -> Iterator[str]:
    """A job whose code this process has."""

    class Letters:
        """Send letters.

        With stamps.
        """

        def process(self, to: str, *, copies: int = 1) -> None: ...

    name = "classes.letters.Send"
    options: dict[str, Any] = {"retries": 3, "timeout": 300, "retry_on": (OSError,)}
    palermo.job(name=name, queue="letters", limit=2, limit_key=lambda to: to, **options)(Letters)
    yield name
    registry.unregister(name)


def test_a_job_class_has_its_rates_times_errors_and_last_runs_on_one_page(web: Web) -> None:
    at = time.time() - 60
    write(web.client, [counted("classes.pay", succeeded=40, failed=2), counted("classes.other", succeeded=3)])
    write(web.client, [ended("good", at=at, job="classes.pay"), failed_run("bad", at=at, job="classes.pay")])
    write(web.client, [ended("foreign", at=at, job="classes.other")])
    publish_failed(
        web.client,
        *((message(f"pay-{nth}", job="classes.pay"), failure("shop.Declined", "no funds")) for nth in range(3)),
        (message("other-1", job="classes.other"), failure("shop.Elsewhere", "no")),
    )
    web.page("/history", "foreign")

    page = web.page("/classes/classes.pay", "shop.Declined")

    assert "42 jobs processed, 2 of them failed" in page
    assert "3 failed jobs" in page
    assert ("shop.Elsewhere" in page, "foreign" in page) == (False, False)
    assert ('title="good"' in page, 'title="bad"' in page) == (True, True)
    assert "The options of this job are not known here" in page
    [group] = [part.split('"')[0] for part in page.split('href="/failures?')[1:] if "group%3A" in part.split('"')[0]]
    assert "pay-1" in web.page("/failures?" + html.unescape(group))


def test_all_job_classes_are_listed_the_busiest_first_and_found_by_name(web: Web) -> None:
    write(web.client, [counted("classes.rare", succeeded=1), counted("classes.busy", succeeded=40, failed=2)])
    write(web.client, [counted(_NASTY, succeeded=1)])
    web.page("/classes", "classes.busy")

    page = web.page("/classes?window=hour")

    assert page.index("classes.busy") < page.index("classes.rare")
    assert 'aria-label="42 runs, 2 failed"' in page
    assert (_NASTY in page, _NASTY in html.unescape(page).replace("<wbr>", "")) == (False, True)
    found = web.page("/classes?name=BUSY")
    assert ("classes.busy</a>" in found, "classes.rare</a>" in found) == (True, False)
    web.page("/classes?name=no-such-class", "No job class matches.")
    assert "/classes/classes.busy?window=hour" in web.page("/statistics")
    nasty = web.page(f"/classes/{quote(_NASTY, safe='')}")
    assert ("<h1>&lt;b&gt;" in nasty, "1 jobs processed" in nasty) == (True, True)
    assert "No job of this class" in web.page("/classes/nowhere")


def test_the_options_are_shown_of_a_job_whose_code_is_imported(web: Web, settings: Any, serve: Any, send: str) -> None:
    web.inspector.recurring.put("letters at night", send, cron="0 2 * * *", args=["all"])
    web.page("/classes", send)

    page = html.unescape(web.page(f"/classes/{send}"))

    assert "Send letters." in page
    assert "(to: str, *, copies: int = 1)" in page
    for option, value in (("timeout", "5 min 0 s"), ("retries", "3"), ("retry_on", "OSError")):
        assert f"<dt>{option}</dt><dd>{value}</dd>" in page
    assert "<dt>limit_key</dt><dd>by " in page
    assert '<a href="/queues/letters">letters</a>' in page
    assert "letters at night" in page
    assert re.search(rf'name="job"[^>]* value="{re.escape(send)}"', page)

    off = serve(replace(settings, journal="off"))
    assert send in off.page("/classes")
    page = off.page(f"/classes/{send}")
    assert ("the journal setting is" in page, "retry_on" in page) == (True, True)


# -- statistics


def cell(start: float, *, run: Iterable[float] = (), **numbers: int) -> Cell:
    tally = Tally(numbers=numbers)
    for seconds in run:
        tally.run.add(seconds)
    return Cell(start, 10.0, tally)


def test_a_plot_of_durations_has_round_limits_and_gaps() -> None:
    cells = [cell(0, run=[0.02]), cell(10, run=[0.02, 40.0]), cell(20), cell(30, run=[0.05])]
    nothing = [cell(0), cell(10)]

    plot = durations_plot(cells, [each.tally.run for each in cells], (), jobs="")

    assert durations_plot(nothing, [Durations(), Durations()], (), jobs="") is None
    assert runs_plot(nothing, (), jobs="").table == []
    assert plot is not None
    assert plot.ticks == (0.01, 0.1, 1.0, 10.0, 60.0)
    assert [row == [None] * 3 for row in plot.rows] == [False, False, True, False]
    assert [at for at, _ in plot.table] == [iso_instant(30), iso_instant(10), iso_instant(0)]
    for seconds in (0.0, 1e-9, 0.3, 86_400.0, 1e12):
        placed = durations_plot([cell(0)], [cell(0, run=[seconds]).tally.run], (), jobs="")
        assert placed is not None
        assert len(placed.ticks) >= 2


def test_what_was_counted_is_on_the_page_in_the_api_and_in_stats_txt(web: Web) -> None:
    told = [
        {"kind": "worker_up", "at": time.time(), "release": "1.4.2"},
        counts(time.time(), succeeded=3, retried=1, run=[0.25, 0.5, 0.5, 2.0]),
        counts(time.time(), _NASTY, "shop.nasty", failed=2, run=[0.1, 0.1]),
        {"kind": "lost", "at": time.time(), "count": 12},
    ]
    write(web.client, told)
    write(web.client, [counts(time.time(), enqueued=9)], writer="client:1@host")
    eventually(lambda: web.api("stats")["enqueued"] == 9)

    found = web.api("stats?window=hour")
    assert (found["processed"], found["failed"], found["retried"], found["lost"]) == (6, 3, 1, 12)
    assert [row["name"] for row in found["queues"]] == ["mail", _NASTY, "failed"]
    run = found["queues"][0]["run"]
    assert (run["count"], run["min"], run["mean"], run["max"]) == (4, 0.25, 0.8125, 2.0)
    assert run["p50"] == pytest.approx(0.5, rel=0.2)
    assert [(row["id"], row["state"], row["processed"]) for row in found["workers"]] == [("pid:7@host", None, 6)]
    assert [deploy["release"] for deploy in found["deploys"]] == ["1.4.2"]
    assert sum(each["processed"] for each in found["series"]) == 6
    one = web.api("stats?job=shop.nasty")
    assert (one["processed"], one["failed"], one["queues"]) == (2, 2, [])

    for window in ("hour", "day", "week", "month"):
        page = web.http.get("/statistics", params={"window": window}).text
        assert page.count("<rect") == 1 + page.count('class="begun"')  # the brand's
        assert _NASTY not in page
        assert "&lt;b&gt;&amp;&#34;a/b&#39; ?window=x" in page
        assert "<b>deployed</b>" in page
    linked = re.search(r'href="(\?window=month&amp;queue=%3Cb[^"]*)"', page)
    assert linked
    own = web.http.get("/statistics" + linked[1].replace("&amp;", "&")).text
    assert "<h1>&lt;b&gt;" in own
    assert "By queue" not in own
    assert "Nothing was counted for this queue" in web.shown("/statistics?queue=no")

    text = dict(line.rsplit("=", 1) for line in web.http.get("/stats.txt").text.splitlines())
    assert (text["journal.processed"], text["journal.failed"], text["journal.enqueued"]) == ("6", "3", "9")
    assert int(text["journal.since"]) <= time.time()
    publish(web.client, message("1", queue="a=b"))
    web.page("/stats.txt", "palermo.pending=1\n", "queues.a%3Db=1\n")


def test_chart_numbers_are_on_the_page_with_links_to_the_jobs(web: Web) -> None:
    at = time.time() - 90
    work = counts(at, failed=1, succeeded=3, run=[0.25, 2.0])
    write(web.client, [{"kind": "worker_up", "release": "1.4.2", "at": at}, work])
    write(web.client, [failed_run("lost", at=at, job="shop.send"), failed_run("earlier", at=at - 900)])
    eventually(lambda: web.api("stats")["processed"] == 4)
    web.page("/history", "earlier")

    page = web.http.get("/statistics?queue=mail").text

    done, waited = (json.loads(html.unescape(text)) for text in re.findall(r'data-plot="([^"]*)"', page)[:2])
    assert [row for row in done["rows"] if any(row)] == [[3, 1, 0]]
    assert [each["name"] for each in done["bars"] + done["lines"]] == ["succeeded", "failed", "enqueued"]
    assert (done["unit"], waited["unit"], done["jobs"]) == ("jobs", "seconds", "/history?filter=queue:=mail")
    assert [release for _, release in done["marks"]] == ["1.4.2"]
    without_scripts = re.findall(r"<noscript>.*?</noscript>", page, re.DOTALL)[0]
    assert re.findall(r'<td class="num">(.*?)</td>', without_scripts) == ["3", "1", "0"]
    [part] = re.findall(r'<a href="(/history[^"]*)">', page)
    jobs = web.http.get(html.unescape(part)).text
    assert ("lost" in jobs, "earlier" in jobs) == (True, False)
    # The overview knows the last ten minutes before anybody has looked at it.
    overview = web.http.get("/").text
    for said in ("<li>3 succeeded</li>", "4 processed, 1 of them failed"):
        assert said in overview
    assert "so far" not in overview


def test_an_hour_of_yesterday_is_counted_from_its_first_to_its_last_minute(web: Web) -> None:
    ten = time.time() // 86_400 * 86_400 - 86_400 + 10 * 3_600
    for minutes, number in ((-1, 1), (0, 20), (30, 300), (59, 4_000), (60, 50_000)):
        at = ten + 60 * minutes + 1
        write(web.client, [counts(at, succeeded=number)])
        write(web.client, [counts(at, "slow", "shop.resize", failed=number)], writer="pid:8@host")
    since, until = (time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(at)) for at in (ten, ten + 3_600))
    address = f"/statistics?since={since}&until={until}"
    web.page("/statistics", "Metrics")

    page, one = web.page(address), web.page(f"{address}&queue=slow")

    assert "<dt>Processed</dt><dd>8,640</dd>" in page
    assert '<dt>Failed runs</dt><dd class="bad">4,320</dd>' in page
    assert "<dt>Processed</dt><dd>4,320</dd>" in one
    plot = json.loads(html.unescape(re.findall(r'data-plot="([^"]*)"', page)[0]))
    assert (plot["start"], plot["step"], len(plot["rows"]), plot["begun"]) == (ten, 30, 120, False)
    busy = {nth: row[:2] for nth, row in enumerate(plot["rows"]) if any(row[:2])}
    assert busy == {0: [20, 20], 60: [300, 300], 118: [4_000, 4_000]}
    assert f'name="since" value="{since}"' in page


def test_what_changed_in_the_time_of_a_chart_is_listed_under_it(web: Web) -> None:
    now = time.time()
    write(web.client, [{"kind": "worker_up", "release": "1.4.2", "at": now - 50}, counted("shop.resize", failed=2)])
    write(web.client, [failed_run("a", "retried", at=now - 40, delay=5), failed_run("a", at=now - 35)])
    paused = done_by("anna", "pause", at=now - 30, queue="mail")
    requeues = [done_by("ben", "requeue", at=now - nth, ids=["a"], count=1) for nth in (20, 19)]
    write(web.client, [done_by("anna", "requeue", at=now - 7_200, count=9), paused, *requeues, done_by("ben", "stack")])

    told = ["requeue 1 job ben via web 2 times", "pause queue mail anna via web", "died pid:7@host"]
    told += ["new error builtins. Value Error", "deployed 1.4.2"]
    for path in ("/", "/statistics"):
        eventually(lambda path=path: re.search(".*? ago ".join(["", *told]), web.shown(path)))
