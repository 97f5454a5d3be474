"""Many waiting jobs of a queue at once, on its page: a selection or a filter is cancelled, moved or discarded."""

import re
from typing import Any

import pytest

from palermo.contract.broker import Broker
from palermo.settings.settings import Settings
from palermo.webui.pages import waiting
from palermo.webui.site import Role, User
from tests.contract.tools import consume
from tests.helpers import eventually
from tests.webui.conftest import Serve
from tests.webui.server import Web
from tests.webui.test_scheduled_pages import text_of

pytestmark = pytest.mark.usefixtures("patient")


def fill(web: Web, number: int = 6) -> None:
    """Jobs of two names in turn."""
    for nth in range(number):
        name = "shop.mail.Send" if nth % 2 else "shop.images.Resize"
        web.client.enqueue(name, [f"to-{nth}"], {"password": "hunter2"}, queue="mail", id=f"j{nth}")
    # The pages know a queue from a snapshot that may be a moment old.
    eventually(lambda: web.http.get("/queues/mail").status_code == 200)


def listed(web: Web, queue: str = "mail") -> list[str]:
    return [row["id"] for row in web.inspector.jobs(queue).rows]


def act(web: Web, query: str, **more: Any) -> str:
    """Ask on the page of this query, and confirm; what the next page says."""
    page = f"/queues/mail/confirm?{query}"
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', web.http.get(page).text)
    kept: dict[str, Any] = {name: value.replace("&amp;", "&") for name, value in fields if name not in ("token", "id")}
    kept["id"] = [value for name, value in fields if name == "id"]
    return text_of(web.form(page, "/queues/mail/act", **{**kept, **more}))


def test_selected_jobs_are_moved_to_another_queue(web: Web) -> None:
    fill(web)

    assert "Moved 2 jobs." in act(web, "act=move&id=j1&id=j4", queue="slow", unserved="slow")

    assert listed(web, "slow") == ["j1", "j4"]
    eventually(lambda: listed(web) == ["j0", "j2", "j3", "j5"])


def test_all_that_match_the_filter_of_the_page_are_discarded_and_no_others(web: Web) -> None:
    fill(web)
    shown = text_of(web.http.get("/queues/mail?job=shop.mail.*"))
    assert ("to-1" in shown, "to-0" in shown) == (True, False)

    asked = text_of(web.http.get("/queues/mail/confirm?act=discard&all=1&job=shop.mail.*"))
    assert "Discard 3 jobs of mail?" in asked
    assert "Chosen by job “shop.mail.*”." in asked
    assert "Discarded 3 jobs." in act(web, "act=discard&all=1&job=shop.mail.*")

    eventually(lambda: listed(web) == ["j0", "j2", "j4"])


def test_all_that_have_a_text_are_cancelled(web: Web) -> None:
    fill(web)

    assert "Cancelled 1 job." in act(web, "act=cancel&all=1&text=TO-3")

    states = {row["id"]: row["state"] for row in web.inspector.jobs("mail").rows}
    assert [id for id, state in states.items() if state == "cancelled"] == ["j3"]


def test_a_hidden_value_chooses_no_job(web: Web) -> None:
    fill(web)

    assert "No waiting job matches that any more." in text_of(
        web.http.get("/queues/mail/confirm?act=discard&all=1&text=hunter2", follow_redirects=True)
    )


def test_the_number_has_to_be_typed_when_many_are_meant(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "UNTYPED", 5)
    monkeypatch.setattr("palermo.webui.pages.failures.UNTYPED", 5)
    fill(web)

    assert "Type their number, 6, to confirm" in text_of(web.http.get("/queues/mail/confirm?act=cancel&all=1"))
    assert "6 jobs were meant" in act(web, "act=discard&all=1", typed="5")
    assert len(listed(web)) == 6
    assert "Discarded 6 jobs." in act(web, "act=discard&all=1", typed="6")
    assert listed(web) == []


def test_a_count_says_how_far_it_looked(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "DEPTH", 2)
    fill(web)

    asked = text_of(web.http.get("/queues/mail/confirm?act=discard&all=1&job=shop.mail.*"))

    assert "Discard 1 job of mail?" in asked
    assert "among the first 2 jobs; jobs that match among the 4 behind them are included too" in asked
    assert "Discarded 3 jobs." in act(web, "act=discard&all=1&job=shop.mail.*")


def test_a_queue_that_cannot_be_is_refused_at_its_field_and_nothing_moves(web: Web) -> None:
    fill(web)

    for to, said in (("", "Queue name"), ("a*", "palermo worker -q"), ("mail", "wait in mail already")):
        page = "/queues/mail/confirm?act=move&id=j1"
        again = web.form(page, "/queues/mail/act", act="move", id="j1", number="1", queue=to)
        assert again.status_code == 422
        assert 'name="queue" aria-invalid="true" aria-describedby="confirm-queue-problem" autofocus' in again.text
        assert said in text_of(again)
    assert len(listed(web)) == 6


def test_a_move_to_a_mistyped_queue_asks_and_makes_no_queue(web: Web) -> None:
    fill(web)

    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    web.client.run(serve)
    eventually(lambda: "No worker serves legacy" not in text_of(web.http.get("/queues/legacy")))
    page = "/queues/mail/confirm?act=move&id=j1"

    asked = eventually(
        lambda: (
            "Did you mean"
            in (again := web.form(page, "/queues/mail/act", act="move", id="j1", number="1", queue="legcy")).text
            and again
        )
    )

    assert asked.status_code == 422
    told = "No worker serves queue 'legcy'. Did you mean 'legacy'? Send the form again to use this queue anyway."
    assert told in text_of(asked)
    assert 'name="queue" aria-invalid="true"' in asked.text
    assert listed(web) == [f"j{nth}" for nth in range(6)]
    assert "legcy" not in [row["name"] for row in web.inspector.queues()]
    again = web.press(asked, "/queues/mail/act", queue="other")
    assert "No worker serves queue 'other'." in text_of(again)
    assert "Moved 1 job." in text_of(web.press(again, "/queues/mail/act", queue="other"))
    assert "Moved 1 job." in act(web, "act=move&id=j2", queue="legacy")


def test_what_a_worker_took_meanwhile_is_told(web: Web) -> None:
    fill(web)

    assert "Discarded 1 job, 1 had gone." in act(web, "act=discard&id=j1", id=["j1", "nobody"], number="2")


def test_a_form_that_does_not_say_which_is_refused(web: Web) -> None:
    fill(web)
    page = "/queues/mail/confirm?act=discard&id=j1"

    for filter in ("", "some&job=x", "all&tenant=x", "all&job="):
        answer = web.form(page, "/queues/mail/act", act="discard", filter=filter, number="1")
        assert (answer.status_code, len(listed(web))) == (422, 6)
    assert web.form(page, "/queues/mail/act", act="requeue", id="j1").status_code == 422


def test_an_operator_moves_and_cancels_and_only_an_administrator_discards(settings: Settings, serve: Serve) -> None:
    web = serve(settings, auth=lambda request: User("olga", Role.OPERATOR))
    fill(web)

    page = web.http.get("/queues/mail").text
    assert ("Move selected" in page, "Discard selected" in page) == (True, False)
    assert "role admin" in act(web, "act=discard&id=j1")
    assert len(listed(web)) == 6
    assert "Cancelled 1 job." in act(web, "act=cancel&id=j1")
