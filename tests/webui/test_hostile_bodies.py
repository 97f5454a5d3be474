"""Jobs that somebody wrote in order to stop the pages: these show what is small, and look at the rest not at all."""

import gzip
import json
from typing import Any

from msgspec.structs import replace

from palermo.webui.render.formats import pretty_json
from palermo.webui.render.tracebacks import parts_of
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.server import Web

#: 30,000 numbers that share one hash, which took the process that decoded them six seconds: 275 kB gzipped.
_COLLIDING = json.dumps([{"$palermo": "set", "value": [n * (2**61 - 1) for n in range(30_000)]}]).encode()


def test_a_job_made_of_hash_collisions_is_not_decoded_for_the_pages(web: Web) -> None:
    hostile = replace(message("1"), body=gzip.compress(_COLLIDING), content_encoding="gzip", preview="<set>")
    small = json.dumps([{"$palermo": "set", "value": [n * (2**61 - 1) for n in range(1_000)]}]).encode()
    publish_failed(web.client, (hostile, failure()), (replace(message("2"), body=small, preview=None), failure()))

    async def put(broker):  # type: ignore[no-untyped-def]
        await broker.publish(replace(hostile, queue="mail"))

    web.client.run(put)

    for page in ("/", "/queues", "/queues/mail", "/failures", "/jobs/1"):
        answer = web.http.get(page)
        assert answer.status_code == 200, (page, answer.text)
    # After one look RabbitMQ may count a job less for an instant.
    (waiting,) = eventually(lambda: web.http.get("/api/queues/mail/jobs").json()["rows"])
    assert (waiting["args"], waiting["preview"]) == (None, "<set>")
    rows = {row["id"]: row for row in web.http.get("/api/failed").json()["rows"]}
    assert rows["1"]["args"] is None
    assert rows["2"]["preview"] == "<set of 1000>"
    assert len(rows["2"]["args"][0]) == 1_000


def test_of_large_jobs_that_wait_the_pages_show_the_previews(web: Web) -> None:
    large = [
        replace(message(str(n)), queue="mail", body=json.dumps(["x" * 200_000]).encode(), preview=f"'x' {n}")
        for n in range(30)
    ]

    async def put(broker):  # type: ignore[no-untyped-def]
        await broker.publish_many([*large, replace(message("small"), queue="mail")])

    web.client.run(put)

    assert "&#39;x&#39; 7" in web.http.get("/queues/mail").text
    assert "&#39;x&#39; 7" in web.http.get("/jobs/7").text

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = web.http.get("/api/queues/mail/jobs", params={"limit": 50}).json()["rows"]
        return found if len(found) == 31 else []

    *many, last = eventually(rows)
    assert [row["args"] for row in many] == [None] * 30
    assert last["args"] == eventually(lambda: web.inspector.jobs("mail", offset=30).rows[0])["args"]


def test_a_traceback_of_very_many_lines_is_taken_apart_in_one_pass() -> None:
    lines = 30_000
    (part,) = parts_of("\n" * (lines - 1) + "x")
    assert len(part.lines) == lines
    (framed,) = parts_of('  File "a.py", line 1, in f\n' + "    x\n" * lines)
    assert len(framed.frames[0].source) == lines


def test_a_text_that_is_cut_is_one_piece() -> None:
    for quotes in (199_999, 200_000, 200_001):
        pieces = list(pretty_json(["x" * (quotes % 3) + '"' * quotes]).pieces())
        assert [kind for kind, _ in pieces] == ["", "text"]
