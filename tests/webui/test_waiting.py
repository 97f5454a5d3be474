"""Many waiting jobs of a queue at once, on its page: a selection or a filter is cancelled, moved or discarded."""

from typing import Any

import httpx
import pytest

from palermo.contract.broker import Broker
from palermo.settings.settings import Settings
from palermo.webui.pages import waiting
from palermo.webui.site import Role, User
from tests.contract.tools import consume
from tests.helpers import eventually
from tests.webui.conftest import Serve
from tests.webui.server import Web, text_of

pytestmark = pytest.mark.usefixtures("patient")

CONFIRM = "/queues/mail/confirm"


@pytest.fixture
def filled(web: Web) -> Web:
    return fill(web)


def fill(web: Web) -> Web:
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


def test_a_selection_is_moved_to_another_queue_or_discarded(filled: Web) -> None:
    assert "Moved 2 jobs." in act(filled, "act=move&id=j1&id=j4", queue="slow", unserved="slow")
    assert listed(filled, "slow") == ["j1", "j4"]
    # What a worker took meanwhile is told.
    assert "Discarded 1 job, 1 had gone." in act(filled, "act=discard&id=j2&id=nobody")
    eventually(lambda: listed(filled) == ["j0", "j3", "j5"])


def test_all_that_match_the_filter_of_the_page_are_meant_and_no_others(filled: Web) -> None:
    shown = filled.shown("/queues/mail?job=shop.mail.*")
    assert ("to-1" in shown, "to-0" in shown) == (True, False)
    hidden = filled.http.get(f"{CONFIRM}?act=discard&all=1&text=hunter2", follow_redirects=True)
    assert "No waiting job matches that any more." in text_of(hidden)

    assert "Cancelled 1 job." in act(filled, "act=cancel&all=1&text=TO-2")
    states = {row["id"]: row["state"] for row in filled.inspector.jobs.list("mail").rows}
    assert [id for id, state in states.items() if state == "cancelled"] == ["j2"]

    asked = filled.shown(f"{CONFIRM}?act=discard&all=1&job=shop.mail.*")
    assert "Discard 3 jobs of mail?" in asked
    assert "Chosen by job “shop.mail.*”." in asked
    assert "Discarded 3 jobs." in act(filled, "act=discard&all=1&job=shop.mail.*")
    eventually(lambda: listed(filled) == ["j0", "j2", "j4"])


def test_the_number_has_to_be_typed_when_many_are_meant(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "UNTYPED", 5)
    monkeypatch.setattr("palermo.webui.pages.failures.UNTYPED", 5)

    assert "Type their number, 6, to confirm" in filled.shown(f"{CONFIRM}?act=cancel&all=1")
    assert "6 jobs were meant" in act(filled, "act=discard&all=1", typed="5")
    assert len(listed(filled)) == 6
    assert "Discarded 6 jobs." in act(filled, "act=discard&all=1", typed="6 jobs")
    assert listed(filled) == []


def test_a_count_says_how_far_it_looked(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "DEPTH", 2)

    asked = filled.shown(f"{CONFIRM}?act=discard&all=1&job=shop.mail.*")

    assert "Discard 1 job of mail?" in asked
    assert "among the first 2 jobs; jobs that match among the 4 behind them are included too" in asked
    assert "Discarded 3 jobs." in act(filled, "act=discard&all=1&job=shop.mail.*")


def test_a_move_to_no_queue_or_a_mistyped_one_asks_and_makes_no_queue(filled: Web) -> None:
    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    filled.client.run(serve)
    eventually(lambda: "No worker serves legacy" not in text_of(filled.http.get("/queues/legacy")))
    page = filled.http.get(f"{CONFIRM}?act=move&id=j1")
    wrong = {
        "": "Queue name",
        "a*": "palermo worker -q",
        "mail": "wait in mail already",
        "legcy": "Did you mean 'legacy'",
    }

    def asked(queue: str, said: str) -> httpx.Response:
        answer = filled.press(page, "/queues/mail/act", queue=queue)
        assert (answer.status_code, said in text_of(answer)) == (422, True)
        return answer

    for queue, said in wrong.items():
        # The pages know which queues are served from a snapshot that may be a moment old.
        answer = eventually(lambda queue=queue, said=said: asked(queue, said))  # type: ignore[misc]
        assert 'name="queue" aria-invalid="true" aria-describedby="confirm-queue-problem" autofocus' in answer.text

    assert len(listed(filled)) == 6
    assert "legcy" not in [row["name"] for row in filled.inspector.queues.list()]
    again = filled.press(answer, "/queues/mail/act", queue="other")
    assert "No worker serves queue 'other'." in text_of(again)
    assert "Moved 1 job." in text_of(filled.press(again, "/queues/mail/act", queue="other"))
    assert "Moved 1 job." in act(filled, "act=move&id=j2", queue="legacy")


def test_an_operator_moves_and_cancels_and_only_an_administrator_discards(settings: Settings, serve: Serve) -> None:
    web = fill(serve(settings, auth=lambda request: User("olga", Role.OPERATOR)))

    page = web.http.get("/queues/mail").text
    assert ("Move selected" in page, "Discard selected" in page) == (True, False)
    assert "role admin" in act(web, "act=discard&id=j1")
    assert len(listed(web)) == 6
    assert "Cancelled 1 job." in act(web, "act=cancel&id=j1")
