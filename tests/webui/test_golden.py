"""What every page says, of an empty broker and of a shop with jobs in all states; and what programs and forms are told.

tests/golden/requests holds conversations, one in each file. The lines of a file that begin with `$ ` are sent one after
the other to the same shop. Below each are the API's answer, or what the page says at which field; what is written to
the audit log; and the status. To show another answer, write its line and run `PALERMO_GOLDEN=1`.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from palermo.jobs import registry
from palermo.settings.settings import Settings
from palermo.webui.state.journal_views import journal_views
from tests.contract.tools import message as limited
from tests.contract.workers import consume, take
from tests.harness.golden import GOLDEN, assert_golden
from tests.helpers import eventually
from tests.history.written import NOON, done_by, ended, enqueued, write
from tests.history.written import failed as failed_run
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.inspector.workflows import add_order, end_step
from tests.webui.conftest import BROKER_PATIENCE
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web

#: The pages of a broker with nothing in it.
EMPTY = {
    "overview": "/",
    **{
        name: f"/{name}"
        for name in (
            *("queues", "failures", "scheduled", "retries", "recurring", "workers", "classes", "limits", "unique"),
            *("tenants", "history", "audit", "statistics", "topics", "problems", "enqueue", "workflows"),
        )
    },
    "failures-groups": "/failures?by=groups",
    "search": "/search?q=nobody",
    "job-not-found": "/jobs/nowhere",
    "queue-not-found": "/queues/nowhere",
    "recurring-not-found": "/recurring/nowhere",
    "worker-not-found": "/workers/nowhere",
    "page-not-found": "/nowhere",
    "unknown-parameter": "/failures?eror=KeyError",
    "unknown-filter": "/search?q=que:mail",
}

#: The pages of a shop.
SHOP = {
    **{name: path for name, path in EMPTY.items() if "not-found" not in name and "unknown" not in name},
    "search": "/search?q=order",
    "failures-filtered": "/failures?filter=error:KeyError",
    "failures-confirm": "/failures/confirm?act=discard&all=1&filter=queue:mail",
    "failure-edit": "/failures/bad-1/edit",
    "job-failed": "/jobs/bad-1",
    "job-waiting": "/jobs/wait-1",
    "job-edit": "/jobs/wait-1/edit?queue=mail",
    "job-scheduled": "/jobs/later-1",
    "job-retrying": "/jobs/again-1",
    "job-done": "/jobs/done-1",
    "queue": "/queues/mail",
    "queue-paused": "/queues/paused",
    "queue-confirm": "/queues/mail/confirm?act=move&id=wait-1&id=wait-2",
    "scheduled-confirm": "/scheduled/confirm?act=move&all=1",
    "scheduled-cancel": "/scheduled/confirm?act=cancel&all=1",
    "retries-confirm": "/retries/confirm?act=give%20up&id=again-1",
    "recurring-job": "/recurring/nightly",
    "class": "/classes/shop.send",
    "limits-nothing": "/limits?text=us",
    "past-the-end": "/scheduled?page=9",
    "job-whole-life": "/jobs/life-1",
    "job-every-step": "/jobs/life-2",
    "job-waits-again": "/jobs/again-2",
    "job-attempts": "/jobs/bad-4",
    "search-nothing": "/search?q=nobody",
    "search-queue": "/search?q=mail",
}

#: Pages that say what is missing where the journal holds less.
LESS = {**{name: f"/{name}" for name in ("history", "audit", "statistics", "queues")}, "search": "/search?q=x"}

#: Tags that begin or end a line, and parts that no reader sees or that are pictures.
_BLOCKS = (
    r"</?(?:p|div|li|ul|ol|tr|h\d|dt|dd|section|form|table|thead|tbody|button|label|summary|details|nav|pre)\b[^>]*>"
)
_UNSEEN = r"<(svg|script|style|template|datalist|select|noscript)\b.*?</\1>"

#: Durations and relative times, and what depends on the clock or the machine.
_MOVING = (
    (r"\b(?:in )?\d+(?:\.\d+)? (?:d|h|min|s|ms)(?: \d+ (?:h|min|s))?(?: ago)?\b", "<duration>"),
    (r"\b\d\d:\d\d(?::\d\d)?\b(?: UTC| CES?T)?", "<time>"),
    (r"\b20\d\d-\d\d-\d\d\b", "<time>"),
    (r"(?<=^file system\n).*|(?<=^disk space\n).*", "<disk>"),
    (r"\b1[678]\d{8}(?:\.\d+)?\b", "<instant>"),
    (r"^[–\d.]+ jobs/s$", "<rate> jobs/s"),
    (r"\S+@\S+(?= via python)", "<user>"),
    (r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b", "<day>"),
    (r"\bSQLite 3[\d.]+", "SQLite <version>"),
    (r"(<duration> ?)+", "<duration> "),
)


def words(page: str, folder: Path) -> str:
    """The text of the main part of a page, a line for each block."""
    main = page.partition("<main")[2].partition(">")[2].partition("</main>")[0]
    main = re.sub(_UNSEEN, " ", main, flags=re.DOTALL)
    main = re.sub(r"<time\b.*?</time>", " &lt;time&gt; ", main, flags=re.DOTALL)
    text = unescape(re.sub(r"<[^>]+>", " ", re.sub(_BLOCKS, "\x00", " ".join(main.split()))))
    lines = (" ".join(line.split()) for line in text.replace(str(folder), "<folder>").split("\x00"))
    text = "\n".join(line for line in lines if line)
    for pattern, sign in _MOVING:
        text = re.sub(pattern, sign, text, flags=re.MULTILINE)
    return text


def check(web: Web, name: str, path: str, folder: Path) -> None:
    """Compare a page, again for a while: parts of it are read in the background. It is written once it is the same."""
    seen = [""]

    def same() -> bool:
        seen.append(words(web.http.get(path).text.replace(web.url, "http://<host>"), folder))
        assert not os.environ.get("PALERMO_GOLDEN") or seen[-1] == seen[-2]
        assert_golden("pages", name, seen[-1])
        return True

    eventually(same, within=15, every=0.5)


@pytest.fixture(scope="module", autouse=True)
def _no_code() -> Iterator[None]:
    """The pages know no job's code: other tests of this process have declared jobs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "_jobs", {})
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="module")
def empty(folder: Path) -> Iterator[Web]:
    with Web(Settings(url=f"sqlite:///{folder}/empty.db", publish_timeout=BROKER_PATIENCE)) as web:
        yield web


@pytest.fixture(scope="module", params=["off", "failures"])
def less(folder: Path, request: pytest.FixtureRequest) -> Iterator[Web]:
    url = f"sqlite:///{folder}/{request.param}.db"
    with Web(Settings(url=url, publish_timeout=BROKER_PATIENCE, journal=request.param)) as web:
        publish(web.client, message("wait-1"))
        yield web


@pytest.fixture(scope="module")
def shop(folder: Path) -> Iterator[Web]:
    with Web(Settings(url=f"sqlite:///{folder}/shop.db", publish_timeout=BROKER_PATIENCE)) as web:
        fill(web)
        assert journal_views(web.app.state.site).following.wait(60)
        eventually(lambda: web.http.get("/api/audit").json()["total"] == 6)
        eventually(lambda: "limited-1" in web.http.get("/").text)
        yield web


def fill(web: Web) -> None:
    attempt = {"job": "shop.send", "body": "[]", "headers": {"recurring": "nightly"}}
    result = {"content_type": "application/json", "text": "[42]"}
    whole = [
        enqueued("life-1", job="shop.send"),
        failed_run("life-1", "retried", "try 1", at=NOON + 10, delay=15, **attempt),
        *({**ended("life-1", "progress", at=NOON + 30 + nth, attempt=2), "fraction": nth / 4} for nth in (1, 2, 3)),
        {**ended("life-1", "log", at=NOON + 35, attempt=2), "text": "page 3 of 4"},
        ended("life-1", at=NOON + 40, attempt=2, result=result, **attempt),
    ]
    every = [
        enqueued("life-2", run_at=NOON + 60, displaced="life-2"),
        {"kind": "fired", "at": NOON + 1, "id": "life-2", "name": "nightly"},
        {"kind": "limited", "at": NOON + 2, "id": "life-2", "key": "sync", "limit": 3, "rate": "50/s"},
        failed_run("life-2", "retried", at=NOON + 3, delay=90),
        ended("life-2", "snoozed", at=NOON + 4, delay=5, attempt=2),
        ended("life-2", "released", at=NOON + 5, attempt=3),
        ended("life-2", "discarded", at=NOON + 6, attempt=3, reason="too late"),
        ended("life-2", "cancelled", at=NOON + 8, took=None, by="anna"),
    ]
    life = [enqueued("done-1", job="shop.send"), ended("done-1", at=NOON + 9, job="shop.send")]
    write(
        web.client,
        whole,
        every,
        life,
        [done_by("anna", "cancel", at=NOON + 7, ids=["life-2"], outcome="refused")],
        [failed_run("over-1", at=NOON + 20), done_by("anna", "requeue", ids=["over-1"], count=1)],
        [{"kind": "worker_down", "at": NOON + 60}],
        writer="client:1@host",
    )
    # Actions are listed as they came: these are the oldest.
    eventually(lambda: web.http.get("/api/audit").json()["total"] == 2)
    publish_failed(
        web.client,
        (message("bad-1", "order 1"), failure()),
        (message("bad-2", "order 2", job="shop.pay"), failure("KeyError", "order 2")),
        (message("bad-3", "order 3", job="shop.pay"), failure("KeyError", "order 3")),
        (retrying("bad-4", -5, queue="slow", times=2), failure("OSError", "the last", at=1_700_000_500)),
    )
    publish(web.client, *(message(f"wait-{nth}", f"order {nth}") for nth in range(3)))
    publish(web.client, message("acme-1", tenant="acme"), message("held", queue="paused"))
    schedule(web.client, due("later-1", 9 * DAY + 900, "order 4"), retrying("again-1", 9 * DAY + 9_000, times=2))
    schedule(web.client, retrying("again-2", -5, queue="slow"))
    # The page of a job that no list has shown yet also has its headers.
    web.page("/retries", "again-1")
    nightly = {"cron": "0 3 * * *", "tz": "Europe/Rome", "args": ["eu"], "kwargs": {"password": "hunter2"}}
    web.inspector.recurring.put("nightly", "shop.sweep", **nightly)
    web.inspector.recurring.put("off", "shop.sweep", every=3_600)
    web.inspector.recurring.switch("off", on=False)
    web.inspector.queues.pause("paused", reason="the mail server moves")
    with Client(replace(web.client.settings, journal="off")) as client:  # Else rates change from second to second.
        until_done = {"unique": "until_done", "unique_key": "eu"}
        client.enqueue("shop.sync", ["eu"], queue="paused", id="sync-1", delay=8 * DAY, **until_done)
    web.client.run(limit)


async def limit(broker: Broker) -> None:
    """One of two jobs of a limit of one runs, and the other waits for it."""
    asks = {"limit": 1, "limit-key": 'shop.sync:<b>"eu/1"</b>'}
    await broker.publish_many(limited(id, "limited", extra=asks) for id in ("limited-1", "limited-2"))
    consumer = await consume(broker, "limited", slots=2)
    for slot in (1, 2):
        await consumer.permit(await take(consumer, slot))


@pytest.mark.parametrize("name", EMPTY)
def test_golden_pages_of_an_empty_broker(empty: Web, folder: Path, name: str) -> None:
    check(empty, f"empty-{name}", EMPTY[name], folder)


@pytest.mark.parametrize("name", LESS)
def test_golden_pages_with_a_smaller_journal(less: Web, folder: Path, name: str) -> None:
    check(less, f"journal-{less.client.settings.journal}-{name}", LESS[name], folder)


@pytest.mark.parametrize("name", SHOP)
def test_golden_pages_of_a_shop(shop: Web, folder: Path, name: str) -> None:
    check(shop, f"shop-{name}", SHOP[name], folder)


NAMES = sorted(path.stem for path in (GOLDEN / "requests").glob("*.txt"))

#: What a page says was done or is wrong, with the field that it belongs to.
_SAID = re.compile(r'<(?:p|div) (?!id="stale")([^>]*)role="(?:alert|status)"[^>]*>(.*?)</(?:p|div)>', re.DOTALL)
_FIELD = re.compile(r'id="(?:[\w-]+-)?(\w+)-problem"')

#: Ids of operations and of runs by hand, and the user of this machine.
_VARYING = re.compile(
    r'(?<=[-~])[0-9a-f]{8}\b|((?<=operation=)|(?<="id": "))[\w-]{16}(?![\w-])|(?<="by": ")[^"@]+@[^"]+'
)

SECRET = b'{"args": [5], "kwargs": {"password": "hunter2"}}'


def fill_lists(web: Web) -> None:
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
    "limits": lambda web: web.client.run(limit),
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


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", NAMES)
def test_golden_answers(web: Web, caplog: pytest.LogCaptureFixture, name: str) -> None:
    caplog.set_level("INFO", logger="palermo.audit")
    fill_lists(web)
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
