"""The API: the rows of the command line, over HTTP; everything that the pages do, programs can do too."""

import pytest

import palermo
from palermo.contract.unique_jobs import UniqueJob
from palermo.errors import ArgumentsInvalid
from palermo.jobs.redaction import MASK, masked_row, unmasked
from palermo.settings.settings import Settings
from tests.webui.conftest import Serve
from tests.webui.server import Web


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


@palermo.job(name="web.api.greet", queue="greetings")
def greet(name: str, password: str = "", *, greeting: str = "hi") -> None: ...


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
    assert (refused.status_code, "computed by a function" in refused.json()["error"]) == (422, True)
    assert len(refused.json()["error"].splitlines()) == 1
    assert keyed.status_code == 201
    assert "the code of" in plain.json()["note"], "it is never silently plain"
    assert "computed by a function" in page.text
    assert web.http.get("/api/queues/jobs/jobs").json()["total"] == 2
    assert "the code of" in web.form("/queues", "/enqueue", job="shop.never_seen").text


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
        with pytest.raises(ArgumentsInvalid, match="Replace it with the hidden values"):
            unmasked(edited, original)
