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
from tests.inspector.jobs import message, publish
from tests.webui.conftest import BROKER_PATIENCE, Serve
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


@pytest.mark.parametrize(
    ("kind", "state"), [("succeeded", "done"), ("discarded", "discarded"), ("cancelled", "cancelled")]
)
def test_an_ended_job_shows_its_arguments_and_runs_again(web: Web, kind: str, state: str) -> None:
    write(web, "a", kind, body='["cat.png", 640]', priority=3)
    page = web.page("/jobs/a", "Run again")
    assert all(text in page for text in (f">{state}</span>", "cat.png", "640"))

    answer = web.form("/jobs/a", "/jobs/a/again")

    assert "Enqueued again as this new job." in answer.text
    new = row_of(web, new_id(answer))
    assert (new["args"], new["queue"], new["retries"], new["priority"]) == (["cat.png", 640], "mail", None, 3)
    web.page("/jobs/a", f"/jobs/{new['id']}")
    web.page(f"/jobs/{new['id']}", "/jobs/a")


def test_the_pages_of_a_job_and_of_what_it_enqueued_lead_to_each_other(web: Web, rig: Rig) -> None:
    notes = str(rig.notes_path)
    parent = rig.enqueue("enqueues", notes, module="crew_families")
    rig.burst(modules=("crew", "crew_families"))
    child, failed, event = rig.lines()
    of_parent = web.page(f"/jobs/{parent}", "Children", "Run again", f"/jobs/{child}", f"/jobs/{failed}")
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

    assert all(text in shown for text in ("shop.mail waiting", "Waiting for"))
    assert note not in web.shown(f"/jobs/{ids[6]}")
    web.client.run(lambda broker: broker.purge("mail"))
    eventually(lambda: "This job was not found." in web.shown(f"/jobs/{ids[3]}"))


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
        ({"body": f'["{MASK}", 7]', "inexact": "hidden"}, "are hidden by the web_redact setting"),
        ({"preview": "'xxx...", "inexact": "shortened", "size": 5_000}, "has only their beginning"),
        ({"body": '["x"]', "inexact": "converted", "content_type": "application/msgpack"}, "not serialized as JSON"),
        ({"preview": "b'…'", "inexact": "unreadable", "content_type": "application/x-pickle"}, "only a preview"),
    ],
)
def test_no_job_runs_again_with_arguments_that_are_not_its_own(web: Web, fields: dict[str, Any], said: str) -> None:
    write(web, "a", **fields)
    page = web.http.get("/jobs/a").text
    assert "Incomplete: " in page
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
    assert "Not recorded. " in web.http.get("/jobs/a").text
    other = serve(replace(settings, journal="failures"))

    page = other.page("/jobs/a", "set journal = &#34;all&#34;")

    assert "Run again" not in page
    assert web.http.get("/jobs/a/again").status_code == 404
    write(web, "b", body="[]")
    publish(web.client, message("b", queue="mail"))
    eventually(lambda: web.http.get("/queues/mail").status_code == 200)
    assert "has not ended" in web.form("/queues/mail?ask=clear", "/jobs/b/again").text
    assert [row["id"] for row in web.inspector.jobs.list("mail")] == ["b"]


# -- the steps of a life


def life(*records: dict[str, Any]) -> list[Row]:
    return [entry(record, "pid:7@h").step() if record["kind"] != "action" else record for record in records]


def action(what: str, outcome: str = "done", at: str = "2026-11-21T09:00:09Z") -> Row:
    return {"kind": "action", "at": at, "by": "anna", "source": "cli", "action": what, "outcome": outcome}


STARTED = {**ended("a", "started"), "took": None}


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
    assert told[2][-1] == "No longer found"
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
