"""Queues and workers, on their pages and in the API: what is told of them, done to them, and what is wrong now."""

import html
import json
import logging
import re
import signal
import time
from html import unescape
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest

from palermo.contract.rows import Row
from palermo.core.version import VERSION
from palermo.history import worker_lives
from palermo.inspector.doctor import examine
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.render.tracebacks import stacks_of
from palermo.webui.state import usage
from palermo.webui.state.live_state import OldestJobs
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.history.written import counts, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.rabbitmq.patience import have_patience
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
    at = time.time() - 30
    mail = counts(at, "mail", "shop.mail", enqueued=4_030, succeeded=400, failed=1, retried=2)
    write(web.client, [mail, counts(at, "bills", "shop.mail", enqueued=403)])
    publish_failed(web.client, (message("bad", queue="mail"), failure("shop.Wrong", "no")))
    told = ("403 jobs processed in the last hour", 'href="/failures?filter=queue:=mail">1</a>')
    page = web.page("/queues/mail", *told)
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
    monkeypatch.setattr(tuning, "RECENT", 0.1)  # the first look is too early for a job that is due in a second
    publish(web.client, message("1"))
    publish(web.client, due("s1", 1.0))
    web.inspector.queues.pause("mail")
    write(web.client, [counts(time.time(), succeeded=20, failed=5)])

    page = web.page("/problems", "5 of 25 runs")
    assert "paused, and 1 job waits in it" in page
    assert web.api("jobs/1/status")["reason"].startswith("queue mail: paused, and 1 job waits in it. To resume it,")
    assert 'href="/failures?filter=job:=shop.send+since:15m"' in page
    eventually(lambda: "overdue" in [row["kind"] for row in web.api("problems")["rows"]])
    web.page("/problems", "no worker moves it to its queue")


def test_several_jobs_that_fail_often_lead_to_all_failures(web: Web) -> None:
    write(web.client, [counts(time.time(), job=f"shop.{name}", succeeded=20, failed=5) for name in "abcde"])
    assert 'href="/failures?filter=since:15m"' in web.page("/problems", "25 of 125 runs of 5 jobs")


def test_read_only_pages_store_or_ask_little(settings: Settings, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    web = serve(settings, read_only=True)
    page = web.http.get("/problems").text
    assert ("The broker is not checked" in page, "passed checks" in page) == (True, False)

    publish(web.client, message("1"))
    web.http.get("/problems")
    monkeypatch.setattr(OldestJobs, "of", lambda *given: pytest.fail("a queue was read"))
    web.page("/audit", 'nav-problems">1<')


_PLAIN = """\
Thread 0x01 (most recent call first):
  File "/srv/shop/tasks.py", line 3 in inner
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/site/palermo/worker/child/reporting.py", line 9 in _run

Current thread 0x03 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 180 in get
  File "/srv/shop/tasks.py", line 7 in resize
  File "/site/palermo/jobs/definition.py", line 200 in call
  File "/site/palermo/worker/child/executor.py", line 298 in _steps
  File "/site/palermo/cli/worker.py", line 211 in worker
"""

_AWAITS = """\
Task shop.fetch 7c9e:
  File "/site/palermo/worker/child/interrupts.py", line 179, in within
    return await coroutine
  File "/srv/shop/tasks.py", line 14, in fetch
    await asyncio.sleep(t)
  File "/usr/lib/python3.11/asyncio/tasks.py", line 649, in sleep
    return await future
"""


@pytest.fixture
def workers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the workers shows each that lives: on a busy machine it may answer after seconds."""
    have_patience(monkeypatch)


def test_the_frames_of_the_job_come_first_and_those_of_the_worker_apart() -> None:
    job, other, worker = stacks_of(_PLAIN)

    assert [frame.function for frame in job.job] == ["get", "resize"]
    assert [frame.function for frame in job.worker] == ["call", "_steps", "worker"]
    assert ([frame.own for frame in job.job], job.title) == ([False, True], "Current thread 0x03")
    assert ([frame.function for frame in other.job], other.worker) == (["inner", "run"], ())
    assert (worker.job, [frame.function for frame in worker.worker]) == ((), ["wait", "_run"])
    # The stack of a coroutine begins with the call that it awaits.
    [stack] = stacks_of(_AWAITS)
    awaits = [("sleep", ("return await future",)), ("fetch", ("await asyncio.sleep(t)",))]
    assert [(frame.function, frame.source) for frame in stack.job] == awaits
    assert [frame.function for frame in stack.worker] == ["within"]


@pytest.mark.parametrize("text", ["", "\n\n", "it gave no answer within 2 s", '  File "a", line 1, in b', "  x\ny"])
def test_a_text_that_is_no_stack_is_shown_as_it_is(text: str) -> None:
    found = stacks_of(text)

    said = " ".join(part for stack in found for part in (stack.title, *stack.rest))
    assert text.split() == said.split() or [frame.path for stack in found for frame in stack.job] == ["a"]


@pytest.mark.usefixtures("workers_have_time")
def test_several_workers_are_stopped_when_their_number_is_typed(
    web: Web, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for chosen, said in (
        ([], "Select some workers first."),
        (["pid:0@gone"], "None of these workers is alive any more."),
    ):
        page = web.http.get("/workers/confirm", params={"act": "kill", "id": chosen}, follow_redirects=True)
        assert said in page.text
    assert web.http.get("/workers/confirm", params={"act": "dance", "id": ["a"]}).status_code == 422
    processes = [rig.worker("--log-level", "warning") for _ in range(3)]

    def idle() -> list[str]:
        found = [row["id"] for row in rig.workers() if row["state"] == "idle"]
        return found if len(found) == 3 else []

    ids = eventually(idle)
    eventually(lambda: "slots, 3 workers" in web.http.get("/").text)

    def asked() -> bool:
        page = web.http.get("/workers/confirm", params={"act": "stop", "id": [*ids[:2], "pid:0@gone"]}).text
        return "Stop 2 workers?" in page and "Type their number, 2, to confirm" in page

    eventually(asked)
    assert web.form("/workers", "/workers/stop", worker=ids[:2], number="2", typed="3").status_code == 422
    assert eventually(idle) == ids
    assert web.form("/workers", "/workers/stop", number="2", typed="2").status_code == 422
    with caplog.at_level(logging.INFO, logger="palermo.audit"):
        done = web.form("/workers", "/workers/stop", worker=[*ids[:2], "pid:0@gone"], number="3", typed="3")

    assert "Asked 2 workers to finish the running jobs and end. 1 had already ended." in done.text
    eventually(lambda: [row["id"] for row in rig.workers()] == ids[2:])
    [line] = [text for text in caplog.messages if text.startswith("worker stop by=local")]
    assert ids[0] in line
    assert sum(process.alive for process in processes) >= 1
    history = rig.inspector.history
    [action] = eventually(lambda: [row for row in history.audit().rows if row["action"] == "stop workers"])
    assert (action["by"], action["count"], ids[1] in action["what"]) == ("local", 2, True)
    eventually(lambda: ">2 workers</span>" in web.http.get("/audit").text)


@pytest.mark.slow
@pytest.mark.usefixtures("workers_have_time")
def test_a_worker_shows_its_release_and_what_it_uses_until_it_ends(web: Web, rig: Rig) -> None:
    process = rig.worker("--log-level", "warning", PALERMO_RELEASE="2.14.0")
    eventually(rig.workers)
    path = f"/workers/{rig.only_worker()['id']}"

    first = web.http.get(path).text
    plots = [json.loads(unescape(text)) for text in re.findall(r'data-plot="([^"]+)"', first)]
    assert [plot["unit"] for plot in plots] == ["bytes", "percent"]
    assert [value for (value,) in plots[0]["rows"] if value is not None][-1] > 10_000_000
    assert [value for (value,) in plots[1]["rows"] if value is not None] == []
    # The page of all workers asks none: it shows what is known, and is told when there is more.
    eventually(lambda: re.search(r"\d+&nbsp;MB, \d+%", web.http.get("/workers").text))
    eventually(lambda: re.search(r"<dt>CPU</dt><dd>\d+<small>%", web.http.get(path).text))
    web.page(path, "<dt>Leader for</dt><dd>scheduled jobs")

    rig.worker("--log-level", "warning", PALERMO_RELEASE="2.15.0")

    def told() -> bool:
        page, workers = web.http.get(path).text, web.http.get("/workers").text
        releases = re.search(r"Releases: .*2\.1[45]\.0</b> on 1 worker, ", workers)
        assert f"<dt>Palermo</dt><dd>{VERSION}</dd>" in page
        return (
            releases is not None and "2.14.0; the newest is 2.15.0" in page and workers.count("old release</span>") == 1
        )

    eventually(told)
    process.send(signal.SIGTERM)
    process.wait()
    eventually(lambda: ">ended</span>" in web.http.get(path).text)
    assert "Workers that died" not in web.http.get("/workers").text


def test_parts_of_the_last_ten_minutes_have_the_most_that_was_used() -> None:
    used = ((1_000.0, 50e6, 1.0), (1_010.0, 80e6, 6.0), (1_200.0, 60e6, 6.0), (1_204.0, None, None))
    answers = [usage.Answer(*each) for each in used]

    parts = usage.parts(answers, 1_205.0)

    start = usage.begin(1_205.0)
    at = {start + nth * usage.PART: part for nth, part in enumerate(parts) if part != usage.Part()}
    # 5 s of processor time in 10 s; after a gap an answer holds for half a minute before it.
    assert at[1_000.0] == at[1_010.0] == usage.Part(80e6, 50.0)
    assert at[1_170.0] == at[1_200.0] == usage.Part(60e6, 0.0)
    assert set(at) == {1_000.0, 1_010.0, 1_170.0, 1_180.0, 1_190.0, 1_200.0}
    assert usage.newest(parts) == usage.Part(60e6, 0.0)


def test_what_workers_used_is_bounded_and_forgotten_with_them() -> None:
    workers = SimpleNamespace(usage=lambda ids: [{"worker": id, "memory": 1, "cpu": 0.0} for id in ids])
    asked = cast(Inspector, SimpleNamespace(workers=workers))
    known = usage.WorkerUsage(asked)
    many = [{"id": f"{nth}", "answers": nth != 3} for nth in range(tuning.LIMIT + 9)]

    known.ask(many, 1_000.0)
    known.ask(many, 1_001.0)

    assert known.version == 1
    assert [len(known.answers(id, 1_000.0)) for id in ("2", "3", f"{tuning.LIMIT + 8}")] == [1, 0, 0]
    assert known.answers("2", 1_000.0 + tuning.WINDOW) == []
    known.ask(many[:1], 1_010.0)
    assert (known.answers("2", 1_010.0), len(known.answers("0", 1_010.0))) == ([], 2)


@pytest.mark.slow
def test_a_workers_stacks_and_death_are_shown_everywhere(web: Web, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_lives, "GRACE", 1.0)
    id = rig.hold()
    worker = rig.worker("-q", "jobs")
    eventually(lambda: rig.lines() == ["held begins"])
    name = rig.only_worker()["id"]
    web.page("/stats.txt", "palermo.in_progress=1\n", "palermo.working=1\n")

    def stacks() -> str:
        """Of a slot that gets no turn for 2 s there are none."""
        page = web.form("/workers", "/workers/stack", worker=name).text
        return "" if "it gave no answer" in page else page

    shown, _, folded = eventually(stacks).partition(" of the worker</summary>")
    assert f"/jobs/{id}" in shown
    assert ("in hold" in shown, "executor.py" in shown) == (True, False)
    assert "executor.py" in folded
    assert "\n\nworker:\n" in folded
    eventually(lambda: "Running" in web.http.get(f"/jobs/{id}").text)
    eventually(lambda: [row["kind"] for row in rig.inspector.history.timeline(id)] == ["enqueued", "started"])
    of_job = web.press(web.http.get(f"/jobs/{id}"), "/workers/stack")
    assert ("in hold" in of_job.text, f'<a class="mono" href="/jobs/{id}"' in of_job.text) == (True, True)
    of_another = web.form("/workers", "/workers/stack", worker=name, job="another")
    assert "It no longer runs this job." in of_another.text

    worker.send(signal.SIGKILL)
    other = rig.worker("-q", "jobs")
    eventually(lambda: rig.lines().count("held begins") == 2)
    rig.open_gate()
    rig.ready(other)

    eventually(lambda: "Workers that died" in web.http.get("/workers").text)
    [problem] = [row for row in web.http.get("/api/problems").json()["rows"] if row["kind"] == "died"]
    assert problem["text"] == f"1 worker died in the last hour: {name}. Running: crew.hold {id}"
    assert problem["names"] == [name]
    assert problem["text"] in [finding.text for finding in examine(web.client, [])]
    page = web.http.get(f"/workers/{quote(name, safe='')}")
    assert page.status_code == 200
    assert "It stopped reporting" in page.text
    assert f"/jobs/{id}" in page.text
    assert "Workers that died" in web.http.get("/audit").text
    steps = re.findall(r'<div class="what">([^<]+)</div>', web.page(f"/jobs/{id}", ">Done</div>"))
    assert steps == ["Enqueued", "Started", "Worker died", "Started", "Done"]
