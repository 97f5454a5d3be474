"""Attacks on the pages: markup in jobs, paths, sizes, and jobs that somebody wrote in order to stop the pages."""

import gzip
import json
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from palermo.contract.events import Subscription
from palermo.settings.settings import Settings
from palermo.webui.render.formats import pretty_json
from palermo.webui.render.tracebacks import parts_of
from palermo.webui.security.request import MAX_BODY
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import BROKER_PATIENCE
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web

_XSS = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}"

#: 30,000 numbers that share one hash, which took the process that decoded them six seconds: 275 kB gzipped.
_COLLIDING = json.dumps([{"$palermo": "set", "value": [n * (2**61 - 1) for n in range(30_000)]}]).encode()


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Pages of jobs in all states whose every text is markup."""
    url = f"sqlite:///{tmp_path_factory.mktemp('marked')}/jobs.db"
    texts = {"job": _XSS, "preview": _XSS, "content_type": _XSS}
    trace = f'Traceback\n  File "{_XSS}", line 1, in {_XSS}\n{_XSS}: {_XSS}\n'
    with Web(Settings(url=url, publish_timeout=BROKER_PATIENCE)) as web:
        reason = replace(failure(_XSS, _XSS), stack_trace=trace)
        publish_failed(web.client, (message("bad", _XSS, **texts), reason), (message(f"1{_XSS}", **texts), reason))
        publish(web.client, message(f"2{_XSS}", _XSS, queue=_XSS, **texts), message("3", tenant=_XSS, **texts))
        key = {"unique": "until_done", "unique_key": _XSS}
        web.client.enqueue("shop.mail", [_XSS], {_XSS: _XSS}, queue="mail", id=f"4{_XSS}", **key)
        schedule(web.client, due(f"5{_XSS}", 900, _XSS, queue=_XSS, **texts), retrying("6", 900, queue=_XSS, **texts))
        web.inspector.recurring.put(_XSS, _XSS, every=3_600, args=[_XSS], queue=_XSS.replace("*", "x"))
        topics = Subscription(group=f"g{_XSS}", queue=f"palermo_g{_XSS}", topics=(f"o.{_XSS}",), function=_XSS)
        web.client.run(lambda broker: broker.events.subscribe(topics))
        yield web


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/queues", "/queues/mail", "/queues/{}", "/tenants?queue=mail", "/topics", "/api/docs", "/{}"),
        *("/unique", "/problems", "/history", "/audit", "/search?q={}", "/classes", "/classes/{}"),
        *("/recurring", "/recurring?ask=add", "/recurring?ask={}", "/recurring/{}", "/recurring/{}?ask=edit"),
        *("/scheduled", "/scheduled?filter=queue:{}+job:{}", "/scheduled/confirm?act=cancel&id=5{}"),
        *("/scheduled/confirm?act=cancel&all=1&filter=queue:{}", "/retries", "/retries/confirm?act=retry&id=6"),
        *("/jobs/bad", "/jobs/2{}?queue={}", "/jobs/4{}", "/jobs/5{}", "/jobs/6"),
        *("/failures", "/failures?by=groups", "/failures?since=&filter={}+queue:{}", "/failures/bad/edit"),
        *("/failures/confirm?act=discard&id=1{}", "/failures/1{}/edit"),
    ],
)
def test_markup_in_any_field_is_text_on_every_page(marked: Web, path: str) -> None:
    page = marked.http.get(path.replace("{}", quote(_XSS, safe="")))

    assert page.status_code == (404 if path == "/{}" else 200), page.text
    assert page.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in page.text
    assert "<img" not in page.text


def test_no_path_leads_out_of_the_packaged_files(web: Web) -> None:
    """Asked as no HTTP client would."""
    host, _, port = web.url.removeprefix("http://").partition(":")
    for path in (
        *("/static/../app.py", "/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static/%2e%2e%2fapp.py"),
        *("/static/..%5capp.py", "/static//etc/passwd", "/static/%2Fetc%2Fpasswd", "/static/%00", "/static/"),
        *("/static/..%252f..%252fpyproject.toml", "/static"),
    ):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert int(connection.makefile("rb").readline().split()[1]) in (400, 404), path


def test_bodies_addresses_and_headers_are_of_a_bounded_size(web: Web) -> None:
    json = {"Content-Type": "application/json"}
    chunks = (b"x" * 65_536 for _ in range(MAX_BODY // 65_536 + 2))

    assert web.http.post("/api/jobs", content=b"x" * (MAX_BODY + 1), headers=json).status_code == 413
    assert web.http.post("/api/jobs", content=chunks, headers=json).status_code == 413
    for many in ("failed/discard", "scheduled/cancel"):
        assert web.http.post(f"/api/{many}", json={"ids": ["x"] * 10_001}).status_code == 422
    assert web.http.get(f"/queues?{'x' * 9_000}").status_code == 414
    assert web.http.get("/queues", headers={f"X-{n}": "x" * 1_000 for n in range(70)}).status_code in (400, 431)


def test_bodies_that_are_no_job_and_odd_addresses_are_refused(web: Web) -> None:
    deep = b'{"job": "a", "args": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    for content in (b"[" * 100_000, deep, b"\xff", b"", b"null", b"NaN"):
        answer = web.http.post("/api/jobs", content=content, headers={"Content-Type": "application/json"})
        assert (400 <= answer.status_code < 500, "error" in answer.json()) == (True, True), content[:40]
    for path in ("/api/queues/%FF/jobs", "/queues/%C3%28"):
        assert web.http.get(path).status_code == 400


def test_a_job_made_of_hash_collisions_is_not_decoded_for_the_pages(web: Web) -> None:
    hostile = replace(message("1"), body=gzip.compress(_COLLIDING), content_encoding="gzip", preview="<set>")
    small = json.dumps([{"$palermo": "set", "value": [n * (2**61 - 1) for n in range(1_000)]}]).encode()
    publish_failed(web.client, (hostile, failure()), (replace(message("2"), body=small, preview=None), failure()))
    publish(web.client, replace(hostile, queue="mail"))
    eventually(lambda: web.http.get("/queues/mail").status_code == 200)

    for page in ("/", "/queues", "/queues/mail", "/failures", "/jobs/1"):
        web.shown(page)
    (waiting,) = web.http.get("/api/queues/mail/jobs").json()["rows"]
    assert (waiting["args"], waiting["preview"]) == (None, "<set>")
    rows = {row["id"]: row for row in web.http.get("/api/failed").json()["rows"]}
    assert rows["1"]["args"] is None
    assert rows["2"]["preview"] == "<set of 1000>"
    assert len(rows["2"]["args"][0]) == 1_000


def test_of_large_jobs_that_wait_the_pages_show_the_previews(web: Web) -> None:
    body = json.dumps(["x" * 200_000]).encode()
    large = [replace(message(str(n)), queue="mail", body=body, preview=f"'x' {n}") for n in range(30)]
    publish(web.client, *large, replace(message("small"), queue="mail"))

    for page in ("/queues/mail", "/jobs/7"):
        assert "&#39;x&#39; 7" in web.http.get(page).text
    *many, last = web.http.get("/api/queues/mail/jobs", params={"limit": 50}).json()["rows"]
    assert [row["args"] for row in many] == [None] * 30
    assert last["args"] == web.inspector.jobs.list("mail", offset=30).rows[0]["args"]


def test_very_long_tracebacks_and_texts_are_taken_apart_in_one_pass() -> None:
    lines = 30_000
    (part,) = parts_of("\n" * (lines - 1) + "x")
    assert len(part.lines) == lines
    (framed,) = parts_of('  File "a.py", line 1, in f\n' + "    x\n" * lines)
    assert len(framed.frames[0].source) == lines
    for quotes in (199_999, 200_000, 200_001):
        pieces = list(pretty_json(["x" * (quotes % 3) + '"' * quotes]).pieces())
        assert [kind for kind, _ in pieces] == ["", "text"]
