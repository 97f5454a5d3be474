"""A broker that takes connections and answers nothing, as when its process is stopped: who waits for it, who not."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.state.refreshing import Refreshing
from tests.helpers import HANGS, eventually
from tests.tcp_proxy import TcpProxy
from tests.webui.conftest import Serve

#: Addresses that ask the broker each time.
PAGES = ("/tenants", "/api/queues")

#: Seconds that a page waits for the broker.
PATIENCE = 15.0


def test_all_that_wait_for_the_same_answer_hear_its_error() -> None:
    came, asked, go_on = list[int](), list[int](), threading.Event()

    def make() -> None:
        asked.append(1)
        go_on.wait(HANGS)
        raise BrokerUnavailable("no broker")

    def get(nth: int) -> None:
        came.append(nth)
        with pytest.raises(BrokerUnavailable):
            cached.get()

    cached = Refreshing(make, fresh=60.0)
    with ThreadPoolExecutor(20) as readers:
        answers = readers.map(get, range(20))
        eventually(lambda: len(came) == 20)
        go_on.set()
        list(answers)
    # One that comes after the error asks again.
    assert len(asked) < 20


@pytest.mark.slow
def test_pages_say_that_the_broker_does_not_answer(
    proxied: tuple[TcpProxy, Settings], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "PATIENCE", 0.1)
    came = list[str]()

    def around(app: ASGIApp) -> ASGIApp:
        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            came.append(scope["type"])
            await app(scope, receive, send)

        return counted

    proxy, settings = proxied
    web = serve(replace(settings, publish_timeout=PATIENCE), around=around)
    assert web.http.get("/healthz").status_code == 200
    assert [web.http.get(page).status_code for page in PAGES] == [200] * len(PAGES)
    proxy.stall(new_too=True)
    before = len(came)
    with ThreadPoolExecutor(tuning.THREADS) as visitors:
        asked = [visitors.submit(web.http.get, PAGES[n % len(PAGES)], timeout=6 * PATIENCE) for n in range(60)]
        eventually(lambda: len(came) >= before + len(asked))

        file = web.http.get("/static/palermo.css")
        health = [eventually(lambda: web.http.get("/healthz").status_code == 503) for _ in range(2)]

        assert (file.status_code, health) == (200, [True, True])
        assert not any(each.done() for each in asked), "they waited for the pages"
        answers = [each.result() for each in asked]
    assert {answer.status_code for answer in answers} == {503}
    assert all("BrokerUnavailable" in answer.text for answer in answers)
