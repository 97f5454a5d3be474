"""Palermo in FastAPI and Starlette: the client's life, the dependency, the mounted pages."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

import palermo
from palermo.client import client as clients
from palermo.contrib.fastapi import Palermo, PalermoClient
from palermo.errors import SettingInvalid
from palermo.webui import Role, User

# The newest Starlette would rather have its test client's library by another name.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with")

#: Starts an application, for the test or for a stack, and visits it.
Visit = Callable[..., Any]


@pytest.fixture
def visit() -> Iterator[Visit]:
    from starlette.testclient import TestClient

    with ExitStack() as whole_test:

        def start(app: Starlette, stack: ExitStack = whole_test, **options: Any) -> TestClient:
            return stack.enter_context(TestClient(app, base_url="http://localhost", **options))

        yield start


@palermo.job
def send(number: int) -> None:
    """A job that nobody runs here."""


def who(request: Request) -> User | Response | None:
    name = request.headers.get("x-user")
    if name == "nobody":
        return None
    return User(name, Role.OPERATOR) if name else RedirectResponse("/login")


def shop(**settings: Any) -> tuple[FastAPI, Palermo]:
    jobs = Palermo(**settings)
    app = FastAPI(lifespan=jobs.lifespan)
    jobs.mount_pages(app, "/ops/jobs", auth=who)

    @app.post("/orders/{number}")
    async def create(number: int, client: PalermoClient) -> str:
        await send.enqueue_async(number)
        return (await client.enqueue_async("shop.other", [number])).id

    return app, jobs


def test_the_client_lives_as_long_as_the_application_which_may_start_again(visit: Visit) -> None:
    with pytest.raises(SettingInvalid, match="setting 'urll'"):
        shop(urll="amqp://")
    app, jobs = shop(default_queue="mine")
    assert clients._default is None

    for pending in (2, 4):
        with ExitStack() as running:
            browser = visit(app, running)
            assert browser.post("/orders/1").status_code == 200
            assert clients.default_client() is jobs.client
            rows = palermo.inspector().queues.list()
            assert {row["name"]: row["pending"] for row in rows} == {"failed": 0, "mine": pending}
            assert browser.get("/ops/jobs/api/queues", headers={"x-user": "ann"}).status_code == 200

        assert jobs.client._thread is None


def test_mounted_pages_ask_the_application_who_it_is(visit: Visit) -> None:
    app, _ = shop()
    browser = visit(app, follow_redirects=False)

    assert browser.get("/ops/jobs/queues").headers["location"] == "/login"
    assert browser.get("/ops/jobs/queues", headers={"x-user": "nobody"}).status_code == 401
    assert "ann" in browser.get("/ops/jobs/queues", headers={"x-user": "ann"}).text
    assert browser.get("/ops/jobs/queues", headers={"x-user": "ann", "host": "evil.example"}).status_code == 400


def test_starlette_has_the_client_in_the_state_of_requests(visit: Visit) -> None:
    async def create(request: Request) -> Response:
        job = await request.state.palermo.enqueue_async("shop.send", [1])
        return JSONResponse({"status": str(await job.status_async())})

    app = Starlette(routes=[Route("/", create, methods=["POST"])], lifespan=Palermo().lifespan)

    assert visit(app).post("/").json() == {"status": "pending"}
