"""The application in another one, and behind proxies."""

import logging
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from palermo.settings.settings import Settings
from palermo.webui import ANYONE
from tests.webui.conftest import Serve
from tests.webui.server import Web


def in_starlette(app: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/ops/jobs", app)])


def by_hand(app: ASGIApp) -> ASGIApp:
    """As a dispatcher beside Django's ASGI application does it."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith("/ops/jobs/")
            scope = {**scope, "root_path": "/ops/jobs"}
        await app(scope, receive, send)

    return dispatch


def check_whole(web: Web, root: str, seen: str, **headers: str) -> None:
    """Pages, files, forms and API work below `root`, and lead to what the browser sees as `seen`."""
    web.client.enqueue("shop.mail", queue="a/b")
    web.http.headers.update(headers)

    page = web.http.get(f"{root}/queues/a%2Fb").text

    assert f'action="{seen}/queues/a%2Fb/purge"' in page
    assert f'href="{seen}/static/palermo.css?v=' in page
    assert web.http.get(f"{root}/static/palermo.css").status_code == 200
    assert web.http.get(f"{root}/api/openapi.json").json()["servers"] == [{"url": seen or "/"}]
    assert web.http.get(f"{root}/api/queues/a%2Fb/jobs").json()["total"] == 1
    assert web.http.get(f"{root}/healthz").status_code == 200
    done = web.http.post(f"{root}/queues/a%2Fb/purge")
    assert (done.status_code, done.headers["location"]) == (303, f"{seen}/queues/a%2Fb")


@pytest.mark.parametrize(
    ("options", "root", "seen"),
    [
        ({"around": in_starlette}, "/ops/jobs", "/ops/jobs"),
        ({"around": by_hand}, "/ops/jobs", "/ops/jobs"),
        ({"prefix": "/ops/jobs"}, "", "/ops/jobs"),
        ({"around": in_starlette, "prefix": "/x"}, "/ops/jobs", "/ops/jobs/x"),
    ],
    ids=["Starlette", "by hand", "a proxy that strips a prefix", "an application behind a proxy"],
)
def test_it_works_at_any_path(settings: Settings, serve: Serve, options: dict[str, Any], root: str, seen: str) -> None:
    check_whole(serve(settings, **options), root, seen)


def test_a_proxy_says_what_it_strips_where_it_is_trusted_and_that_is_a_path(settings: Settings, serve: Serve) -> None:
    untrusted, web = serve(settings, auth=ANYONE), serve(settings, trust_proxy=True, auth=ANYONE)
    check_whole(web, "", "/ops/jobs", **{"X-Forwarded-Prefix": "/ops/jobs"})

    for prefix in ("//evil.example", "https://evil.example", '/"><script>', "/a/../b", "evil"):
        page = web.http.get("/queues", headers={"X-Forwarded-Prefix": prefix}).text
        assert 'href="/static/palermo.css' in page, prefix
    for name, value in (("Prefix", "/evil"), ("Host", "evil.example"), ("Proto", "https")):
        page = untrusted.http.get("/queues", headers={f"X-Forwarded-{name}": value}).text
        assert 'href="/static/palermo.css' in page
        paused = untrusted.http.post("/queues/pause", headers={f"X-Forwarded-{name}": value})
        assert "Secure" not in paused.headers["set-cookie"]


def test_a_trusted_proxy_names_the_visitor(settings: Settings, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "palermo.audit")
    web = serve(settings, trust_proxy=True, auth=ANYONE, hosts=["jobs.example.com"])
    job = web.client.enqueue("shop.mail", queue="mail")

    assert "Secure" in web.http.post("/queues/pause", headers={"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    assert web.http.get("/queues", headers={"X-Forwarded-Host": "evil.example"}).status_code == 400
    assert web.http.post("/api/queues/none/purge", headers={"X-Forwarded-For": "127.0.0.1, 192.0.2.7"}).is_error
    assert "from=192.0.2.7" in caplog.text
    web.http.headers.update({"X-Forwarded-Host": "jobs.example.com", "X-Forwarded-Proto": "https"})
    assert f'id="job-link" hidden>https://jobs.example.com/jobs/{job.id}<' in web.http.get(f"/jobs/{job.id}").text
    assert "curl https://jobs.example.com/api/queues" in web.http.get("/api/docs").text
