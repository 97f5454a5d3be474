"""The forms that enqueue, schedule and edit jobs: what they offer, what they refuse, and where they say so."""

import html
import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

import palermo
from palermo.contract.unique_jobs import UniqueJob
from palermo.jobs import registry
from palermo.settings.settings import Settings
from palermo.webui.site import Role, User
from palermo.webui.state.offers import time_zones
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import SAME_ORIGIN, Web
from tests.webui.test_scheduled_pages import text_of

#: A field with an error, and the text of the error that belongs to it.
_WRONG = re.compile(r'name="(\w+)" aria-invalid="true" aria-describedby="[^"]*?([\w-]+-problem)"')


def problems_at(page: httpx.Response) -> dict[str, str]:
    """By field, the error that the page shows at it."""
    found = {}
    for name, id in _WRONG.findall(page.text):
        shown = re.search(rf'id="{id}" role="alert">([^<]*)<', page.text)
        assert shown, id
        found[name] = html.unescape(shown[1])
    return found


@pytest.fixture
def resize() -> Iterator[str]:
    @palermo.job(queue="images", name="forms.Resize")
    def resize(path: str, *, width: int = 640) -> None:
        """A job with a signature."""

    yield "forms.Resize"
    registry.unregister("forms.Resize")


def test_each_error_of_an_enqueue_is_at_its_field_and_what_was_typed_stays(web: Web, resize: str) -> None:
    unfit = web.form("/enqueue", "/enqueue", job=resize, args='["cat.png"]', kwargs='{"height": 3}')
    assert "height" in problems_at(unfit)["kwargs"]
    assert f"{resize}(path: str, *, width: int = 640) -> None" in html.unescape(text_of(unfit))

    wrong = {"args": "[", "kwargs": "[]", "queue": "a*", "priority": "12", "when": "soon"}
    again = web.form("/enqueue", "/enqueue", job=" ", **wrong)

    assert again.status_code == 422
    assert list(problems_at(again)) == ["job", "args", "kwargs", "queue", "priority", "when"]
    assert re.findall(r'name="(\w+)"[^>]* autofocus', again.text) == ["job"]
    for typed in ('value="a*"', 'value="12"', 'value="soon"', ">[</textarea>", ">[]</textarea>"):
        assert typed in again.text, typed
    assert web.inspector.queues.list()[0]["name"] == "failed"


@pytest.fixture
def pages(settings: Settings, serve: Serve) -> Iterator[tuple[Web, httpx.Client]]:
    """Pages that Ada sees, and Ben's browser."""
    web = serve(settings, auth=lambda request: User(request.headers.get("X-User", "ada"), Role.ADMIN))
    with httpx.Client(base_url=web.url, headers={"X-User": "ben", **SAME_ORIGIN}, timeout=60) as ben:
        yield web, ben


def sent(browser: httpx.Client, page: str, to: str, **fields: str) -> httpx.Response:
    """The answer to a form, which the browser opened before."""
    assert 'method="post"' in page
    return browser.post(to, data=fields, follow_redirects=True)


@pytest.mark.parametrize(
    ("job", "edit", "takes", "told"),
    [
        ("bad", "/failures/bad/edit", "/jobs/bad/requeue", "requeue by ada"),
        ("bad", "/failures/bad/edit", "/jobs/bad/discard", "discard by ada"),
        ("later", "/jobs/later/edit", "/jobs/later/due/cancel", "cancel scheduled by ada"),
    ],
)
def test_late_editors_keep_text(pages: tuple[Web, httpx.Client], job: str, edit: str, takes: str, told: str) -> None:
    web, ben = pages
    publish_failed(web.client, (message("bad", 1), failure()))
    schedule(web.client, due("later", DAY, 1))
    opened = ben.get(edit).text
    assert web.form(f"/jobs/{job}", takes).status_code == 200

    def answer() -> httpx.Response:
        late = sent(ben, opened, edit, args='["a text that took long"]', queue="slow", unserved="slow")
        assert told in text_of(late)
        return late

    late = eventually(answer)
    assert late.status_code == 404
    assert "a text that took long" in late.text
    assert 'name="queue" value="slow"' in re.sub(r' id="[^"]*"| placeholder="[^"]*"', "", late.text)
    if job == "bad":
        refused = ben.post("/api/failed/bad/requeue", headers={"Content-Type": "application/json"}, json={})
        assert told in refused.json()["error"]


@pytest.mark.parametrize("lists", ["scheduled", "retries"])
def test_cancelling_on_the_page_of_a_job_leads_to_its_list(web: Web, lists: str) -> None:
    one = due("later", DAY, 1) if lists == "scheduled" else retrying("later", DAY, 1)
    schedule(web.client, one)

    done = web.press(web.http.get("/jobs/later"), "/jobs/later/due/cancel")

    assert (done.status_code, done.url.path) == (200, f"/{lists}")
    assert "Cancelled job later." in text_of(done)
    assert web.inspector.scheduled.list().rows == []


def test_an_edit_of_a_removed_recurring_job_becomes_the_form_that_adds_it(web: Web) -> None:
    web.inspector.recurring.put("nightly", "store.Nightly", cron="0 3 * * *")
    opened = web.http.get("/recurring/nightly").text
    web.inspector.recurring.remove("nightly")

    def answer() -> httpx.Response:
        late = sent(web.http, opened, "/recurring/nightly/edit", cron="5 4 * * *")
        assert late.status_code == 422
        return late

    late = eventually(answer)
    assert "There is no recurring job 'nightly'." in text_of(late)
    assert ('value="5 4 * * *"' in late.text, 'value="nightly"' in late.text) == (True, True)


def test_a_hook_that_keeps_a_job_back_is_told_above_the_fields(web: Web) -> None:
    class Kept:
        def process(self) -> None:
            """Never enqueued."""

        @classmethod
        def before_enqueue(cls) -> bool:
            return False

    palermo.job(name="forms.Kept")(Kept)
    try:
        again = web.form("/enqueue", "/enqueue", job="forms.Kept", kwargs="{}")
    finally:
        registry.unregister("forms.Kept")

    assert (again.status_code, problems_at(again)) == (422, {})
    assert "A before_enqueue hook rejected forms.Kept." in text_of(again)
    assert 'value="forms.Kept"' in again.text


def offered(web: Web, page: str, what: str) -> list[str]:
    """The names that a page offers, each with its label."""
    text = web.http.get(page).text
    found = re.search(rf'<datalist id="known-{what}">(.*?)</datalist>', text, re.DOTALL)
    assert found, what
    return [html.unescape(each) for each in re.findall(r'<option value="([^"]*)"', found[1])]


def test_forms_offer_the_jobs_queues_and_time_zones_that_are_known(web: Web, resize: str) -> None:
    def charge(order: int, force: bool = False) -> None: ...

    job = UniqueJob.of("forms.Announced", {"unique": "until_done"}, inspect.signature(charge))
    web.client.run(lambda broker: broker.keys.announce([job.name], [job]))
    web.client.enqueue("shop.send", queue="mail")

    for page in ("/enqueue", "/queues?ask=enqueue", "/queues/mail?ask=enqueue", "/recurring?ask=add"):
        assert {resize, "forms.Announced"} <= set(offered(web, page, "jobs")), page
        assert offered(web, page, "queues") == ["mail"], page
        assert 'label="forms.Announced(order, force=False)"' in web.http.get(page).text, page

    schedule(web.client, due("later", DAY, 1))
    web.inspector.recurring.put("sweep", "shop.sweep", every=60)
    for page in ("/enqueue", "/recurring", "/recurring/sweep", "/jobs/later", "/jobs/later/edit"):
        eventually(lambda page=page: offered(web, page, "zones") == list(time_zones()))  # type: ignore[misc]
    assert time_zones()[0] == "UTC"
    assert {"Europe/Rome", "America/New_York"} <= set(time_zones())


def test_a_job_is_scheduled_and_moved_to_a_time_of_a_time_zone(web: Web) -> None:
    def told() -> tuple[str, datetime]:
        [row] = web.inspector.scheduled.list().rows
        return row["id"], datetime.fromisoformat(str(row["run_at"]))

    values = {"args": '["a@b.c"]', "kwargs": '{"subject": "<b>", "password": "secret"}', "priority": "3"}
    at = {"on": "2040-07-01T09:30", "zone": "Europe/Rome", "when": ""}
    done = web.form("/enqueue", "/enqueue", job="shop.never_here", queue="mail", **values, **at)
    assert "Scheduled shop.never_here to mail." in text_of(done)
    assert ("a@b.c" in done.text, "secret" in done.text) == (True, False)
    [row] = web.inspector.scheduled.list().rows
    assert (row["args"], row["kwargs"]) == (["a@b.c"], {"subject": "<b>", "password": "secret"})
    assert row["priority"] == 3
    id, first = told()
    assert first == datetime(2040, 7, 1, 7, 30, tzinfo=UTC)

    later = {"on": "2041-01-01T00:00", "zone": "UTC"}
    page = f"/scheduled/confirm?act=move&id={id}"
    assert "Moved 1 job." in web.form(page, "/scheduled/act", act="move", id=id, number="1", **later).text
    assert told() == (id, datetime(2041, 1, 1, tzinfo=UTC))


def test_the_answer_to_a_refused_form_does_not_load_itself_again(web: Web) -> None:
    refused = web.form("/queues", "/queues/gone/pause")

    assert refused.status_code == 404
    assert "Go back in your browser" in refused.text
    assert "hx-get" not in refused.text, "the page would ask for itself, and become the overview"


def test_a_message_of_any_letters_fits_into_its_cookie(web: Web) -> None:
    publish(web.client, message("m", queue="mail"))

    for letter in ("x", "ж", "写", "💥", '"', "\\"):
        answer = web.form("/queues", "/queues/mail/pause", reason=letter * 500)
        web.inspector.queues.resume("mail")

        [sent] = answer.history
        assert sent.headers["set-cookie"].startswith("palermo_message=")
        assert len(sent.headers["set-cookie"].partition(";")[0]) <= 4_096, "browsers drop what is longer"
        assert f"mail is paused: {letter * 500}." in html.unescape(answer.text)
