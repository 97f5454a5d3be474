"""The API: the rows of the command line, over HTTP; everything that the pages do, programs can do too."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

import palermo
from palermo.contract.unique_jobs import UniqueJob
from palermo.errors import ArgumentsInvalid
from palermo.inspector.inspector import Inspector
from palermo.jobs.redaction import MASK, masked_row, unmasked
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import ended, failed, write
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


_IDS = ["a", "a/b", "..a", "100 %", "%2F", "ä€😀", "x" * 255, "€" * 85, "?a=b&c#d", "<script>"]


@palermo.job(name="web.api.greet", queue="greetings")
def greet(name: str, password: str = "", *, greeting: str = "hi") -> None: ...


#: What answers hold, by their addresses.
ROWS: dict[str, Callable[[Inspector], Any]] = {
    "/api/queues": lambda known: known.queues.list(),
    "/api/queues/mail/jobs?limit=2": lambda known: known.jobs.list("mail", limit=2).rows,
    "/api/queues/mail/jobs?newest=true": lambda known: known.jobs.list("mail").rows[::-1],
    "/api/failed": lambda known: known.failed.list().rows,
    "/api/scheduled": lambda known: known.scheduled.list().rows,
    "/api/retries": lambda known: known.scheduled.list(JobFilter(state="retrying")).rows,
    "/api/recurring": lambda known: known.recurring.list(),
    "/api/history": lambda known: known.history.list().rows,
    "/api/audit": lambda known: known.history.audit().rows,
}

#: The same of one.
ONE: dict[str, Callable[[Inspector], Any]] = {
    "/api/failed/bad": lambda known: known.failed.show("bad"),
    "/api/scheduled/later": lambda known: known.scheduled.list().rows[0],
    "/api/jobs/later": lambda known: known.scheduled.list().rows[0],
    "/api/recurring/a%2Fb": lambda known: known.recurring.list()[0],
}


def test_rows_are_those_of_the_library(settings: Settings, serve: Serve) -> None:
    web = serve(settings)
    publish_failed(web.client, (message("bad", "a@b.c"), failure()))
    for n in range(3):
        web.client.enqueue("shop.mail", [n], {"subject": "hi"}, queue="mail")
    schedule(web.client, due("later", 900), retrying("again", 1_800, times=2))
    web.inspector.recurring.put("a/b", "shop.sweep", every=3_600)
    every_five = {"cron": "*/5 * * * *", "tz": "Europe/Rome"}
    web.inspector.recurring.put("b", "shop.sweep", **every_five, args=[1], kwargs={"deep": True})
    write(web.client, [ended("done"), failed("over")])

    def told(path: str) -> Any:
        return web.http.get(path).json()

    for path, rows in ROWS.items():
        wanted = eventually(lambda rows=rows: rows(web.inspector))
        eventually(lambda path=path, wanted=wanted: told(path)["rows"] == wanted)
    for path, row in ONE.items():
        assert told(path) == row(web.inspector), path
    first = told("/api/queues/mail/jobs?limit=2")
    assert (first["total"], first["page"], first["limit"]) == (3, 1, 2)
    assert [one["message"] for one in told("/api/retries")["rows"][0]["attempts"]] == ["try 1", "try 2"]
    assert told("/api/recurring/b")["words"] == "Every fifth minute of every hour (Europe/Rome)"
    for path in ("/api/queues/none/jobs", "/api/jobs/none", "/api/recurring/none", "/api/none", "/api"):
        assert web.http.get(path).status_code == 404, path
    for method, path in (("PUT", "/api/queues"), ("GET", "/api/queues/mail/purge"), ("GET", "/queues/mail/purge")):
        assert web.http.request(method, path).status_code == 405, path
    assert web.http.post("/api/queues/purge").json() == {"removed": 3}


@pytest.mark.parametrize("id", _IDS)
def test_a_job_of_any_id_is_enqueued_found_and_shown(web: Web, id: str) -> None:
    made = web.http.post("/api/jobs", json={"job": "shop.mail", "args": ["a"], "queue": "a/ä", "id": id})

    assert made.status_code == 201
    assert made.json().items() >= {"id": id, "job": "shop.mail", "queue": "a/ä"}.items()
    found = web.http.get(f"/api/jobs/{quote(id, safe='')}").json()
    assert (found["id"], found["state"], found["args"]) == (id, "pending", ["a"])


def test_a_job_is_enqueued_with_the_options_that_options_takes(web: Web) -> None:
    options = {"queue": "mail", "tenant": "acme", "priority": 3, "unique": "until_done", "unique_key": "eu", "limit": 2}
    sync = {"job": "shop.never_seen", **options}
    first = web.http.post("/api/jobs", json={**sync, "id": "mine"})
    again = web.http.post("/api/jobs", json={**sync, "id": "other"})
    changed = web.http.post("/api/jobs", json={**sync, "args": [2], "on_duplicate": "replace"})

    assert (first.status_code, first.json()["id"], first.json()["note"]) == (201, "mine", None)
    assert (again.status_code, "mine" in again.json()["error"]) == (409, True)
    replaced = {"outcome": "replaced", "id": "mine", "state": "waiting"}
    assert (changed.status_code, changed.json()["id"], changed.json()["conflict"]) == (201, "mine", replaced)
    assert web.http.get("/api/jobs/mine").json()["tenant"] == "acme"
    index = {"job": "shop.never_seen_either", "debounce": 600, "unique_key": "home"}
    kept = [web.http.post("/api/jobs", json=index).json() for _ in range(2)]
    displaced = {"outcome": "displaced", "id": kept[0]["id"], "state": "waiting"}
    assert [each["conflict"] for each in kept] == [None, displaced]
    raising = web.http.post("/api/jobs", json={**sync, "on_duplicate": "raise"})
    assert (raising.status_code, "mine" in raising.json()["error"]) == (409, True)
    web.http.post("/api/jobs", json={"job": "shop.mail", "id": "at an instant", "run_at": "2126-12-01T09:00Z"})
    web.http.post("/api/jobs", json={"job": "shop.mail", "id": "after a delay", "delay": 3600})
    rows = {row["id"]: row["run_at"] for row in web.http.get("/api/scheduled").json()["rows"]}
    assert rows.keys() == {"at an instant", "after a delay"}
    assert rows["at an instant"].startswith("2126-12-01T09:00:00")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"unique": True}, {"unique": "always"}, {"unique_key": "eu"}, {"on_duplicate": "ignore"}, {"dedupe": 0}),
        *({"delay": "5m"}, {"run_at": "soon"}, {"delay": 1, "run_at": 4_000_000_000}, {"retries": -1}),
        *({"tenant": ""}, {"share": 0}, {"priority": 10}, {"priority": True}, {"limit": 0}, {"rate": "often"}),
        *({"serializer": "none"}, {"frob": 1}),
    ],
)
def test_an_option_that_means_nothing_is_422_in_words(shared_web: Web, wrong: dict[str, Any]) -> None:
    answer = shared_web.http.post("/api/jobs", json={"job": "shop.never_seen", "queue": "wrong", **wrong})

    assert answer.status_code == 422, answer.text
    assert len(answer.json()["error"].splitlines()) == 1
    assert shared_web.http.get("/api/queues/wrong/jobs").status_code == 404


def test_a_job_announced_as_unique_is_unique_by_its_name(settings: Settings, serve: Serve) -> None:
    web = serve(settings)
    sync = UniqueJob(name="shop.sync_by_name", options={"unique": "until_done"}, parameters=(("shop", 1),))
    index = UniqueJob(name="shop.index_by_name", options={"unique": "until_done"}, keyed_by_code=True)
    web.client.run(lambda broker: broker.keys.announce([sync.name, index.name], [sync, index]))

    first = web.http.post("/api/jobs", json={"job": sync.name, "args": ["eu"]})
    again = web.http.post("/api/jobs", json={"job": sync.name, "kwargs": {"shop": "eu"}})
    refused = web.http.post("/api/jobs", json={"job": index.name, "args": [1]})
    keyed = web.http.post("/api/jobs", json={"job": index.name, "args": [1], "unique_key": "page 1"})
    plain = web.http.post("/api/jobs", json={"job": "shop.never_seen", "queue": "mail"})
    page = web.form("/queues", "/enqueue", job=index.name, args="[2]")

    assert (first.status_code, first.json()["note"]) == (201, None)
    assert (again.status_code, first.json()["id"] in again.json()["error"]) == (409, True)
    assert (refused.status_code, "made by a function" in refused.json()["error"]) == (422, True)
    assert len(refused.json()["error"].splitlines()) == 1
    assert keyed.status_code == 201
    assert "the code of" in plain.json()["note"], "it is never silently plain"
    assert "made by a function" in page.text
    assert web.http.get("/api/queues/jobs/jobs").json()["total"] == 2
    assert "the code of" in web.form("/queues", "/enqueue", job="shop.never_seen").text


def test_workers_are_listed_and_told_what_to_do(settings: Settings, serve: Serve, rig: Rig) -> None:
    web = serve(settings)
    process = rig.worker()
    # It leads a moment after it is there.
    [row] = eventually(lambda: [row for row in web.http.get("/api/workers").json()["rows"] if row["clock"]])
    worker = quote(row["id"], safe="")

    def told(action: str) -> dict[str, Any]:
        """Its answer: a worker that does not run for a second counts as gone, and may be told again."""

        def answer() -> dict[str, Any]:
            found: dict[str, Any] = web.http.post(f"/api/workers/{worker}/{action}").json()
            return found if found.get("answered") else {}

        return eventually(answer)

    def same_as_by_the_inspector() -> bool:
        shown, known = web.http.get("/api/workers").json()["rows"], web.inspector.workers.list()
        return [{**each, "last_seen": None} for each in shown] == [{**each, "last_seen": None} for each in known]

    eventually(same_as_by_the_inspector)
    assert told("quiet")["answered"] is True
    eventually(lambda: [row["state"] for row in web.inspector.workers.list()] == ["quiet"])
    assert "Thread" in told("stack")["text"]
    eventually(lambda: web.http.post(f"/api/workers/{worker}/stop").status_code == 200)
    assert process.wait() == 0
    eventually(lambda: not web.inspector.workers.list())
    eventually(lambda: web.http.post(f"/api/workers/{worker}/stop").status_code == 404)


def test_secrets_among_arguments_are_shown_to_nobody(web: Web) -> None:
    web.client.enqueue("shop.mail", [{"api_key": "s1"}], {"password": "s2", "deep": [{"Token": "s3"}]}, queue="mail")
    web.client.enqueue("web.api.greet", ["Ada", "s4"], queue="mail")

    said = web.http.get("/api/queues/mail/jobs").text

    assert not [secret for secret in ("s1", "s2", "s3", "s4") if secret in said]
    assert "Ada" in said


def test_what_is_hidden_is_hidden_in_previews_and_kept_by_edits() -> None:
    unreadable = {"job": "a", "args": None, "kwargs": None, "preview": "'x', my_password='s'"}
    edited, original = [{"password": MASK, "to": "c"}, "d", "e"], [{"password": "s", "to": "a"}, "b"]

    assert masked_row(unreadable, ("*password*",))["preview"] == MASK
    assert unmasked(edited, original) == [{"password": "s", "to": "c"}, "d", "e"]
    moved: list[tuple[object, object]] = [
        ([{"password": "new"}, {"password": MASK}], [{"password": "s"}]),
        *[({"users": [MASK]}, {"users": "s"}), ({"pin": MASK}, {}), ([MASK], None)],
    ]
    for edited, original in moved:
        with pytest.raises(ArgumentsInvalid, match="replace it with the hidden values"):
            unmasked(edited, original)
