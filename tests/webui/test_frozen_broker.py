"""A broker that takes connections and answers nothing, as when its process is stopped: who waits for it, who not."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from palermo.webui.site import Cached
from palermo.webui.threads import MOST
from tests.helpers import HANGS, eventually
from tests.tcp_proxy import TcpProxy
from tests.webui.conftest import Serve

#: Addresses that ask the broker each time.
PAGES = ("/tenants", "/api/queues")

#: Seconds that a page waits for the broker.
PATIENCE = 15.0


class Counted:
    """The application, and how many requests have come to it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.requests = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += scope["type"] == "http"
        await self._app(scope, receive, send)


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[TcpProxy]:
    address = pika.URLParameters(rabbitmq_url)
    with TcpProxy(address.host, address.port) as proxy:
        yield proxy


def test_all_that_wait_for_the_same_answer_hear_its_error() -> None:
    came, asked, go_on = list[int](), list[int](), threading.Event()

    def make() -> None:
        asked.append(1)
        go_on.wait(HANGS)
        raise BrokerUnavailable("no broker")

    cached = Cached(60, make)

    def get() -> None:
        came.append(1)
        with pytest.raises(BrokerUnavailable):
            cached.get()

    with ThreadPoolExecutor(20) as readers:
        reading = [readers.submit(get) for _ in range(20)]
        eventually(lambda: len(came) == 20)
        go_on.set()
        for each in reading:
            each.result()
    # One that comes after the error asks again.
    assert len(asked) < 20


def test_pages_say_that_the_broker_does_not_answer(
    proxy: TcpProxy, serve: Serve, rabbitmq_url: str, exchange: str
) -> None:
    through = rabbitmq_url.replace(f":{pika.URLParameters(rabbitmq_url).port}/", f":{proxy.port}/")
    counted: list[Counted] = []

    def around(app: ASGIApp) -> ASGIApp:
        counted.append(Counted(app))
        return counted[0]

    web = serve(Settings(url=through, exchange=exchange, publish_timeout=PATIENCE), around=around)
    assert web.http.get("/healthz").status_code == 200
    assert [web.http.get(page).status_code for page in PAGES] == [200] * len(PAGES)
    proxy.stall(new_too=True)
    before = counted[0].requests
    with ThreadPoolExecutor(MOST) as visitors:
        asked = [visitors.submit(web.http.get, PAGES[n % len(PAGES)], timeout=6 * PATIENCE) for n in range(60)]
        eventually(lambda: counted[0].requests >= before + len(asked))

        file = web.http.get("/static/palermo.css")
        health = [eventually(lambda: web.http.get("/healthz").status_code == 503) for _ in range(2)]

        assert (file.status_code, health) == (200, [True, True])
        assert not any(each.done() for each in asked), "they waited for the pages"
        answers = [each.result() for each in asked]
    assert {answer.status_code for answer in answers} == {503}
    assert all("BrokerUnavailable" in answer.text for answer in answers)
