"""What every page says, of an empty broker and of a shop with jobs in all states."""

import os
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.jobs import registry
from palermo.settings.settings import Settings
from palermo.webui.state.journal_views import journal_views
from tests.contract.tools import message as limited
from tests.contract.workers import consume, take
from tests.harness.golden import assert_golden
from tests.helpers import eventually
from tests.history.written import NOON, done_by, ended, enqueued, write
from tests.history.written import failed as failed_run
from tests.inspector.jobs import failure, message, publish, publish_failed
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
    asks = {"limit": 1, "limit-key": "shop.sync:eu"}
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
