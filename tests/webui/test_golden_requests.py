"""What the web answers to programs and forms: tests/golden/requests holds the conversations, one in each file.

The lines of a file that begin with `$ ` are sent one after the other to the same shop. Below each are the API's answer,
or what the page says at which field; what is written to the audit log; and the status. To show another answer, write
its line and run `PALERMO_GOLDEN=1`.
"""

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx
import pytest

from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from tests.harness.golden import GOLDEN, assert_golden
from tests.helpers import eventually
from tests.history.written import done_by, ended, enqueued, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.inspector.workflows import add_order, end_step
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web

NAMES = sorted(path.stem for path in (GOLDEN / "requests").glob("*.txt"))

#: What a page says was done or is wrong, with the field that it belongs to.
_SAID = re.compile(r'<(?:p|div) (?!id="stale")([^>]*)role="(?:alert|status)"[^>]*>(.*?)</(?:p|div)>', re.DOTALL)
_FIELD = re.compile(r'id="(?:[\w-]+-)?(\w+)-problem"')

#: Ids of operations and of runs by hand, and the user of this machine.
_VARYING = re.compile(
    r'(?<=[-~])[0-9a-f]{8}\b|((?<=operation=)|(?<="id": "))[\w-]{16}(?![\w-])|(?<="by": ")[^"@]+@[^"]+'
)

SECRET = b'{"args": [5], "kwargs": {"password": "hunter2"}}'


def fill(web: Web) -> None:
    """Jobs in each list."""
    publish_failed(web.client, (message("bad", 1), failure()), (message("bad-2", 2), failure("KeyError")))
    publish(web.client, message("wait", 3), message("wait-2", 4))
    retries = retrying("again", 2 * DAY, 6), retrying("again-2", 3 * DAY, 7, times=3)
    schedule(web.client, due("later", DAY, body=SECRET, arguments="both"), *retries)
    web.inspector.recurring.put("sweep", "shop.sweep", every=3_600)
    long = ended("long", preview="1, ...", inexact="shortened")
    write(web.client, [enqueued("over"), ended("over", body="[1]"), long])
    write(web.client, [done_by("anna", "requeue", ids=["over"], count=1), done_by("bert", "pause", queue="mail")])
    eventually(lambda: (len(web.ids("history")), web.api("audit")["total"]) == (2, 3))


async def subscribe(broker: Broker) -> None:
    """Two groups of topics, and an event for each."""
    for group, topic in (("mail", "order.*"), ("audit", "#")):
        one = Subscription(group=group, queue=f"palermo_{group}", topics=(topic,), function=f"shop.{group}")
        await broker.events.subscribe(one)


#: What a conversation finds besides, by its name.
MORE: dict[str, Callable[[Web], object]] = {
    "workflows": lambda web: (web.client.run(add_order), web.client.run(lambda broker: end_step(broker, "unpack"))),
    "topics": lambda web: (web.client.run(subscribe), web.client.publish("order.paid", 1, id="paid")),
}


def stored(web: Web) -> list[Any]:
    known = web.inspector
    lists = [known.failed.list().rows, *(known.jobs.list(queue).rows for queue in ("mail", "failed"))]
    return [*lists, known.scheduled.list().rows, known.recurring.list(), known.queues.list(), known.keys.list()]


def said(answer: httpx.Response) -> list[str]:
    """The lines of an answer: a line for each row, or for each thing that a page says."""
    if answer.headers["content-type"] == "application/json":
        found = answer.json()
        rows = found.pop("rows", [])
        return [json.dumps(each, ensure_ascii=False) for each in (*rows, found) if each]
    lines = []
    for attributes, text in _SAID.findall(answer.text):
        field = "".join(f"{name}: " for name in _FIELD.findall(attributes))
        lines.append(field + " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split()))
    return [line for line in lines if line]


def answered(web: Web, line: str) -> httpx.Response:
    method, address, *body = line.split(" ", 2)
    kind = "json" if address.startswith("/api/") else "x-www-form-urlencoded"
    headers = {"Accept": "text/html"} | ({"Content-Type": f"application/{kind}"} if body else {})
    content = body[0].encode() if body else None
    answer = web.http.request(method, address, content=content, headers=headers)
    if "/due/" in address:
        # The page of a job that is gone shows the journal, which has the record of this action a moment later.
        eventually(lambda: web.http.get(address.partition("/due/")[0].join(("/api", "/status"))).is_success)
    return web.http.get(answer.headers["location"], headers=headers) if answer.is_redirect else answer


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", NAMES)
def test_golden_answers(web: Web, caplog: pytest.LogCaptureFixture, name: str) -> None:
    caplog.set_level("INFO", logger="palermo.audit")
    fill(web)
    MORE.get(name, lambda _: None)(web)
    shown = []
    for line in re.findall(r"^\$ (.*)$", (GOLDEN / "requests" / f"{name}.txt").read_text(), re.MULTILINE):
        before = stored(web)
        caplog.clear()
        answer = answered(web, line)
        assert "hunter2" not in answer.text
        assert stored(web) == before or answer.is_success, f"a request that is refused changes nothing: {line}"
        log = [record.getMessage() for record in caplog.records if record.name == "palermo.audit"]
        # The end of a command may be written later.
        log = [f"log: {entry}" for entry in log if " status=" not in entry]
        shown.append("\n".join([f"$ {line}", *said(answer), *log, f"-> {answer.status_code}"]))
    assert_golden("requests", name, _VARYING.sub("<varying>", "\n\n".join(shown)))
