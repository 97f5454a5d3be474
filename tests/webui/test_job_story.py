"""The story of a job on its page: its arguments, its attempts, where it came from; and to run it again or edit it."""

import time
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.browsing import job_search
from palermo.contract.rows import Row
from palermo.core.journal_records import encode
from palermo.history.entry import entry
from palermo.jobs.redaction import MASK
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.pages import job
from palermo.webui.render.job_life import final_state, timeline
from palermo.webui.state.job import FoundJob
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import NOON, ended, enqueued, failed
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web


def write(web: Web, id: str, kind: str = "succeeded", **more: Any) -> None:
    """Write the record of a job's end, and wait until the pages know it."""
    record = {"kind": kind, "at": time.time(), "id": id, "job": "shop.charge", "queue": "mail", "attempt": 1, **more}
    web.client.run(lambda broker: broker.journal.append(encode("pid:1@h", [record])))
    eventually(lambda: web.http.get(f"/api/history/{id}").status_code == 200)


def new_id(answer: httpx.Response) -> str:
    """The id of the job whose page answered."""
    assert answer.status_code == 200, answer.text
    return answer.url.path.rpartition("/")[2]


def row_of(web: Web, id: str) -> Any:
    """The row of a job that waits, once it is seen."""
    return eventually(lambda: web.api(f"jobs/{id}"))


def test_an_ended_job_shows_its_arguments_and_runs_again(web: Web, rig: Rig) -> None:
    notes = str(rig.notes_path)
    done = rig.enqueue("note", notes, "done", priority=3)
    dropped = rig.enqueue("discards", "gone", module="crew_results")
    cancelled = rig.enqueue("note", notes, "cancelled")
    rig.inspector.jobs.cancel(cancelled)
    rig.burst(modules=("crew", "crew_results"))
    assert rig.lines() == ["done"]

    ends = {done: ("done", "done"), dropped: ("discarded", "gone"), cancelled: ("cancelled", "cancelled")}
    for id, (state, text) in ends.items():
        args = [text] if id == dropped else [notes, text]
        page = web.page(f"/jobs/{id}", "Run again")
        assert f">{state}</span>" in page
        for value in args:
            assert value in page, page
        answer = web.form(f"/jobs/{id}", f"/jobs/{id}/again")
        assert "Enqueued again, as this new job." in answer.text
        new = row_of(web, new_id(answer))
        assert (new["args"], new["queue"], new["retries"]) == (args, "jobs", None)
        assert new["id"] != id
        assert new["priority"] == (3 if id == done else 0)
        web.page(f"/jobs/{id}", f"/jobs/{new['id']}")
        web.page(f"/jobs/{new['id']}", f"/jobs/{id}")

    rig.burst(modules=("crew", "crew_results"))
    assert sorted(rig.lines()) == ["cancelled", "done", "done"]


def test_the_pages_of_a_job_and_of_what_it_enqueued_lead_to_each_other(web: Web, rig: Rig) -> None:
    notes = str(rig.notes_path)
    parent = rig.enqueue("enqueues", notes, module="crew_families")
    rig.burst(modules=("crew", "crew_families"))
    child, failed, event = rig.lines()
    of_parent = web.page(f"/jobs/{parent}", "Children", f"/jobs/{child}", f"/jobs/{failed}")
    assert "Enqueued by job" not in of_parent
    assert "the newest" not in of_parent
    for id, state in ((child, "done"), (failed, "failed"), (event, "done")):
        text = web.page(f"/jobs/{id}", "Enqueued by job", f"/jobs/{parent}", f">{state}</span>")
        assert "Children" not in text, id
    assert row_of(web, failed)["parent"] == parent
    assert web.http.get(f"/api/jobs/{child}/status").json()["parent"] == parent


def test_of_many_children_the_newest_are_listed(web: Web) -> None:
    write(web, "many")
    child = {"kind": "enqueued", "at": time.time(), "job": "shop.charge", "queue": "mail", "parent": "many"}
    records = [{**child, "id": f"kid-{n}"} for n in range(tuning.ROWS + 1)]
    web.client.run(lambda broker: broker.journal.append(encode("pid:2@h", records)))
    newest = f"/jobs/kid-{tuning.ROWS}?"

    page = web.page("/jobs/many", newest)

    assert f"the newest {tuning.ROWS} of the jobs that this one enqueued" in page
    assert "/jobs/kid-1?" in page
    assert "/jobs/kid-0?" not in page


def test_the_page_of_a_job_amid_a_long_queue_shows_what_the_journal_knows(
    rabbitmq_url: str, exchange: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_search, "DEPTH", 2)
    monkeypatch.setattr(job, "DEPTH", 2)
    web = serve(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=BROKER_PATIENCE))
    ids = [web.client.enqueue("shop.mail", queue="mail").id for _ in range(7)]
    note = "It waits in a long queue"

    shown = eventually(lambda: text if note in (text := web.shown(f"/jobs/{ids[3]}")) else "")

    assert all(text in shown for text in ("shop.mail waiting", "first and last 2 jobs", "Waiting for"))
    assert note not in web.shown(f"/jobs/{ids[6]}")
    web.client.run(lambda broker: broker.purge("mail"))
    eventually(lambda: "This job is not here any more." in web.shown(f"/jobs/{ids[3]}"))


def test_a_job_runs_again_with_changes_and_the_arguments_that_are_hidden(web: Web) -> None:
    secret = '[{"password": "hunter2", "to": "anna"}]'
    write(web, "a", body=secret, priority=2, headers={"timeout": 30, "tenant": "acme"})
    form, page = (web.http.get(path).text for path in ("/jobs/a/again", "/jobs/a"))
    assert ("&#34;anna&#34;" in form, "timeout" in page, "hunter2" in form + page) == (True, True, False)

    changed = {"args": f'[{{"password": "{MASK}", "to": "bob"}}]', "priority": "5", "when": "2d"}
    answer = web.form("/jobs/a/again", "/jobs/a/again/edited", queue="slow", unserved="slow", **changed)

    (new,) = web.inspector.scheduled.list()
    assert (new["id"], new["args"], new["kwargs"]) == (new_id(answer), [{"password": "hunter2", "to": "bob"}], {})
    assert (new["queue"], new["priority"], new["tenant"]) == ("slow", 5, "acme")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"body": f'["{MASK}", 7]', "inexact": "hidden"}, "hidden values"),
        ({"preview": "'xxx...", "inexact": "shortened", "size": 5_000}, "only the beginning of its arguments"),
        ({"body": '["x"]', "inexact": "converted", "content_type": "application/msgpack"}, "serialized in another way"),
        ({"preview": "b'…'", "inexact": "unreadable", "content_type": "application/x-pickle"}, "only a preview"),
    ],
)
def test_no_job_runs_again_with_arguments_that_are_not_its_own(web: Web, fields: dict[str, Any], said: str) -> None:
    write(web, "a", **fields)
    page = web.http.get("/jobs/a").text
    assert "Not as they were" in page
    assert said in page
    assert 'action="/jobs/a/again"' not in page

    asked = web.form("/jobs/a/again", "/jobs/a/again")
    assert (asked.url.path, said in asked.text) == ("/jobs/a/again", True)
    for wrong in ({"args": f'["{MASK}", 7]'}, {}):
        assert web.form("/jobs/a/again", "/jobs/a/again/edited", **wrong).status_code == 422
    assert not any(row["pending"] for row in web.inspector.queues.list())

    whole = web.form("/jobs/a/again", "/jobs/a/again/edited", args='["hunter2", 7]', kwargs="{}")
    assert row_of(web, new_id(whole))["args"] == ["hunter2", 7]


def test_what_is_not_recorded_is_said_and_how_to_record_it(web: Web, settings: Settings, serve: Serve) -> None:
    write(web, "a")
    assert "They are not recorded" in web.http.get("/jobs/a").text
    other = serve(replace(settings, journal="failures"))

    page = other.page("/jobs/a", 'settings <code>journal = "all"</code>')

    assert "Run again" not in page
    assert web.http.get("/jobs/a/again").status_code == 404
    write(web, "b", body="[]")
    publish(web.client, message("b", queue="mail"))
    eventually(lambda: web.http.get("/queues/mail").status_code == 200)
    assert "has not ended" in web.form("/queues/mail?ask=clear", "/jobs/b/again").text
    assert [row["id"] for row in web.inspector.jobs.list("mail")] == ["b"]


# -- edit


@pytest.mark.usefixtures("patient")
def test_a_job_in_any_state_is_changed_or_put_off_and_keeps_its_id(web: Web) -> None:
    publish(web.client, *(message(f"m-{number}", number, queue="mail", retries=2) for number in range(3)))
    publish_failed(web.client, (message("bad", 4, queue="slow"), failure("KeyError", "no", at=1_700_000_000)))
    schedule(web.client, due("later", 300, 1), due("other", 300, 2), retrying("again", 300, 3, times=2))
    eventually(lambda: web.http.get("/failures/bad/edit").status_code == 200)

    def edit(page: str, **fields: str) -> httpx.Response:
        return web.form(page, page, **fields)

    slow = {"queue": "slow", "unserved": "slow"}
    assert "Changed 1 job." in edit("/jobs/m-1/edit?queue=mail", args="[42]", priority="4", **slow).text
    edit("/jobs/m-2/edit?queue=mail", when="1d")
    edit("/jobs/later/edit", args='["new"]', kwargs='{"fast": true}', **slow)
    edit("/jobs/again/edit", priority="7", when="5d")
    edit("/failures/bad/edit", args="[5]", priority="6", when="2d")
    assert web.form("/queues", "/jobs/nobody/edit", args="[1]").status_code == 404

    eventually(lambda: [row["id"] for row in web.inspector.jobs.list("mail")] == ["m-0"])
    (changed,) = web.inspector.jobs.list("slow")
    assert (changed["id"], changed["args"], changed["priority"], changed["retries"]) == ("m-1", [42], 4, 2)
    rows = {row["id"]: row for row in web.inspector.scheduled.list()}
    assert list(rows)[2:] == ["m-2", "bad", "again"]
    assert (rows["m-2"]["args"], rows["m-2"]["queue"]) == ([2], "mail")
    assert (rows["later"]["args"], rows["later"]["kwargs"], rows["later"]["queue"]) == (["new"], {"fast": True}, "slow")
    assert (rows["other"]["args"], rows["other"]["queue"]) == ([2], "mail")
    again, bad = rows["again"], rows["bad"]
    assert (again["args"], again["priority"], again["state"]) == ([3], 7, "retrying")
    assert [one["message"] for one in again["attempts"]] == ["try 1", "try 2"]
    assert (bad["args"], bad["priority"], bad["retries"]) == ([5], 6, 1)
    assert web.inspector.failed.list().rows == []
    [told] = eventually(lambda: [row for row in web.inspector.history.audit() if row["ids"] == ["m-1"]])
    assert (told["action"], told["queue"], told["what"]) == ("edit", "slow", "with other arguments")


def test_a_program_runs_jobs_again_and_edits_them(web: Web) -> None:
    write(web, "over", body="[1]")
    write(web, "long", inexact="shortened", preview="1, ...")
    schedule(web.client, due("later", DAY, 1))

    asked = web.http.post("/api/jobs/over/again", json={"queue": "slow"})
    again = web.http.post("/api/jobs/over/again", json={"queue": "slow", "unserved": True})
    refused = web.http.post("/api/jobs/long/again", json={"args": [1]})
    edited = web.http.post("/api/jobs/later/edit", json={"args": [2], "priority": 3})

    assert (asked.status_code, "No worker serves" in asked.json()["error"]) == (409, True)
    assert (again.status_code, refused.status_code) == (201, 422)
    assert [(row["id"], row["args"]) for row in web.inspector.jobs.list("slow")] == [(again.json()["id"], [1])]
    assert edited.json() == {"id": "later", "job": "shop.send", "queue": "mail"}
    assert [(row["args"], row["priority"]) for row in web.inspector.scheduled.list()] == [([2], 3)]


# -- the steps of a life


def life(*records: dict[str, Any]) -> list[Row]:
    return [entry(record, "pid:7@h").step() if record["kind"] != "action" else record for record in records]


def action(what: str, outcome: str = "done", at: str = "2026-11-21T09:00:09Z") -> Row:
    return {"kind": "action", "at": at, "by": "anna", "source": "cli", "action": what, "outcome": outcome}


STARTED = {**ended("a", "started"), "took": None}


AT = "at pid:7@h/worker-2"


@pytest.mark.parametrize(
    ("records", "steps"),
    [
        ([enqueued("a"), ended("a")], ["Enqueued to mail", f"Started {AT}", f"Done {AT}"]),
        ([enqueued("a"), STARTED, ended("a")], ["Enqueued to mail", f"Started {AT}", f"Done {AT}"]),
        (
            [failed("a", "retried", delay=90)],
            [f"Started {AT}", f"Failed builtins.ValueError {AT}, tried again in 1 min 30 s"],
        ),
        ([ended("a", "cancelled", took=None, by="anna")], ["Cancelled by anna"]),
        ([ended("a", "discarded", reason="too late")], [f"Started {AT}", "Discarded too late"]),
        ([ended("a", "snoozed", delay=5)], [f"Started {AT}", "Snoozed runs again in 5.0 s"]),
        (
            [{"kind": "limited", "at": NOON, "id": "a", "key": "sync", "limit": 3, "rate": "50/s"}],
            ["Put aside sync may run 3 at once and 50/s"],
        ),
        ([ended("a", "released")], [f"Started {AT}", f"Given back {AT}, which stopped or lost its session"]),
        ([enqueued("a", run_at=NOON + 60)], ["Enqueued to mail, to run at 2026-11-21T09:01:00Z"]),
        ([{"kind": "fired", "at": NOON, "id": "a", "name": "nightly"}], ["Enqueued by the recurring job nightly"]),
        (
            [enqueued("a", displaced="a")],
            ["Enqueued to mail, in place of the enqueue before it, which had not begun"],
        ),
        ([enqueued("a"), action("cancel", "refused")], ["Enqueued to mail", "Cancel by anna via cli: refused"]),
    ],
)
def test_a_life_is_told_in_steps(records: list[dict[str, Any]], steps: list[str]) -> None:
    events = timeline(FoundJob(id="a", state="failed"), life(*records))

    assert [f"{event.title} {event.detail}" for event in events] == steps


def test_a_life_ends_in_its_run_or_wait_and_a_short_run_has_a_beginning() -> None:
    running = FoundJob(id="a", state="running", worker="w", started_at="2026-11-21T09:00:01Z", queue="mail")
    again = FoundJob(id="a", state="retrying", queue="mail", due="2026-11-21T10:00:00Z")
    gone = FoundJob(id="a", state="")
    tried = {"failed_at": "2026-11-21T09:00:09Z", "class": "KeyError"}
    unrecorded = FoundJob(id="a", state="failed", row={"created_at": None, "attempts": [tried], "worker": "w"})
    known = life(enqueued("a"), STARTED)

    told = [[event.title for event in timeline(job, known)] for job in (running, again, gone)]
    short = timeline(gone, life(enqueued("a"), ended("a", at=NOON + 10, took=2.5)))

    assert told[0] == ["Enqueued", "Running"]
    assert told[1] == ["Enqueued", "Started", "Next try"]
    assert told[2][-1] == "Not found any more"
    assert [event.title for event in timeline(gone)] == ["Enqueued", "Not found"]
    assert [(event.title, event.detail) for event in timeline(unrecorded)] == [
        ("Enqueued", ""),
        ("Failed", "KeyError at w"),
    ]
    assert [event.at for event in short[1:]] == ["2026-11-21T09:00:07.500Z", "2026-11-21T09:00:10Z"]
    assert [event.took for event in short[1:]] == [7.5, 2.5]


@pytest.mark.parametrize(
    ("records", "end"),
    [
        *(([enqueued("a")], None), ([enqueued("a"), ended("a")], "done")),
        *(([failed("a", "retried", delay=5)], None), ([failed("a")], "failed")),
        *(([failed("a"), action("requeue")], None), ([failed("a"), action("requeue", "failed")], "failed")),
        *(([failed("a"), action("discard")], "discarded"), ([failed("a"), ended("a"), action("requeue")], "done")),
        *(([ended("a"), action("cancel")], "done"), ([ended("a", "cancelled")], "cancelled")),
        ([ended("a", "snoozed")], None),
    ],
)
def test_the_end_is_what_came_last_whoever_stored_first(records: list[dict[str, Any]], end: str | None) -> None:
    assert final_state(life(*records)) == end
