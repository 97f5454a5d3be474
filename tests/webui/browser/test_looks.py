"""The looks of every page and every dialog: on a desktop, in the dark on a narrower one, and on a phone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize

from palermo.core.journal_records import encode, encode_record
from tests.helpers import eventually
from tests.history.written import done_by, ended, enqueued, write
from tests.history.written import failed as failed_run
from tests.inspector.jobs import failure, message, publish_failed
from tests.inspector.workflows import add_order, add_steps, step
from tests.webui.browser.conftest import PHONE, Open, workers
from tests.webui.browser.looks import misfits, violations
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import Web

_DESKTOP: ViewportSize = {"width": 1366, "height": 768}
_NARROW: ViewportSize = {"width": 1200, "height": 800}

#: What axe is asked by look. Axe is slow: what a look cannot change is checked in one of them.
_IN_THE_DARK = {"runOnly": ["color-contrast"]}
_ON_A_PHONE = {"runOnly": ["target-size", "label", "link-name"]}

#: The addresses of all pages, and of their dialogs.
_PATHS = {
    "pages": """
/ /running /waiting /waiting?filter=queue:images /queues /queues/nowhere /queues/images /queues/billing /enqueue
/failures /failures?by=groups /failures?filter=nothing /jobs/bad-1
/jobs/nowhere /jobs/told /jobs/later-1 /jobs/later-1/edit /jobs/told/again /scheduled /scheduled?filter=queue:nothing
/retries /recurring /recurring/monthly%20invoice%20run
/history /history?filter=job:shop.mail.SendReceip /statistics /statistics?window=month&queue=mail
/classes /classes/shop.mail.SendReceipt /topics /tenants?queue=images /limits /unique /workers
/workers/{worker} /workflows
/workflows/w1 /workflows/w2 /problems /search /search?q=shop /search?q=queue:billing+error:JSON /search?q=no+such+text
/search?q=que:nowhere /audit /api/docs
""",
    "dialogs": """
/?ask=help /queues?ask=enqueue /queues?ask=pause-all /queues/images?ask=clear /queues/images?ask=delete
/failures/confirm?act=discard&all=1 /failures/confirm?act=requeue&id=bad-1 /failures/bad-1/edit
/jobs/bad-1?ask=discard /jobs/again-1?ask=move /scheduled/confirm?act=move&all=1
/scheduled/confirm?act=cancel&id=later-1 /retries/confirm?act=give+up&all=1 /retries/confirm?act=move&all=1
/recurring?ask=add /recurring/stock%20levels?ask=edit /recurring/stock%20levels?ask=run-with
/workflows/w1?ask=signal /workflows/w1?ask=retry /workflows/w1?ask=cancel
/workers?ask=stop-all /workers/confirm?act=kill&id={worker}
""",
}


@pytest.fixture(scope="module")
def web(served: Web) -> Web:
    return served


@pytest.fixture(scope="module")
def worker(web: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The worker of a shop with jobs of every kind, in queues, at work and over. Its id."""
    folder = tmp_path_factory.mktemp("worker")
    fill(web, folder)
    with workers(folder, web.client.settings) as start:
        start(concurrency=2)
        [worker] = eventually(lambda: [row for row in web.inspector.workers.list() if len(row["jobs"]) == 2])
        eventually(lambda: "done-7" in web.http.get("/history").text)
        yield str(worker["id"])


def fill(web: Web, folder: Path) -> None:
    for nth in range(3):
        text = f"Expecting property name enclosed in double quotes: line 1 column {nth} (char {nth})"
        bad = message(f"bad-{nth}", queue="billing", job="shop.payments.ChargeTheCustomer")
        publish_failed(web.client, (bad, failure("json.decoder.JSONDecodeError", text)))
    schedule(web.client, *(due(f"later-{nth}", 9_000 + nth) for nth in range(30)), retrying("again-1", 9_000, times=3))
    web.inspector.recurring.put("monthly invoice run", "shop.reports.Monthly", cron="30 2 1 * *", tz="Europe/Rome")
    web.inspector.recurring.put("stock levels", "shop.sweep", every=21_600)
    web.inspector.recurring.switch("stock levels", on=False)
    web.client.enqueue("shop.images.Resize", ["/uploads/cat.png"], {"width": 640}, queue="images")
    web.client.enqueue("shop.images.Resize", ["/uploads/cat.png"], queue="images", tenant="acme", share=2)
    web.client.enqueue("shop.images.Resize", ["/uploads/cat.png"], queue="images", unique="until_done")
    web.inspector.queues.pause("images")
    web.client.run(add_order)
    web.client.run(lambda broker: add_steps(broker, *(step(f"link-{nth}") for nth in range(301)), id="w2"))
    at = time.time() - 99
    counted = encode("w", [encode_record({"kind": "worker_up", "at": at, "release": "1.4.2"})])
    web.client.run(lambda broker: broker.journal.append(counted))
    lines = [{**ended("told", "log", at=at), "text": f"line {nth} of its log"} for nth in range(3)]
    steps = [{**ended("told", "progress", at=at), "fraction": part, "text": f"{part:.0%}"} for part in (0.25, 0.75)]
    tried = failed_run("told", "retried", at=at, delay=5)
    told = ended("told", at=at, attempt=2, body='["cat.png", 640]', headers={"timeout": 30, "recurring": "nightly"})
    over = [ended(f"done-{nth}", at=at, job="shop.mail.SendReceipt") for nth in range(20)]
    over += [ended(f"over-{kind}", kind, at=at, reason="too late") for kind in ("discarded", "cancelled")]
    monthly = {"at": at, "job": "shop.reports.Monthly"}
    over += [ended(f"monthly invoice run@2026-{nth:02}-01T01:30:00Z", **monthly) for nth in (9, 10)]
    counts = {"kind": "counts", "queue": "mail", "job": "shop.mail.SendReceipt", "succeeded": 20, "failed": 1}
    counts |= {"enqueued": 21, "run": {"40": 21}, "wait": {"20": 21}}
    write(web.client, [{**counts, "at": at - nth * 300} for nth in range(9)])
    write(web.client, [enqueued("told", at=at), *lines, *steps, tried, told, failed_run("lost", at=at), *over])
    write(web.client, [done_by("anna", "requeue", at=at, ids=["bad-7", "bad-8"], count=2, queue="orders")])
    for name in ("one", "two"):
        web.client.enqueue("browser.wait", [str(folder / name)], queue="slow")


def on_a_desktop(page: Page) -> list[str]:
    """What is wrong with a page in light colours, and with the same page in dark ones in a narrower window."""
    wrong = misfits(page) + violations(page)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(_NARROW)
    # Charts follow the window with the next frame.
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    wrong += misfits(page) + violations(page, **_IN_THE_DARK)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(_DESKTOP)
    return wrong


def on_a_phone(page: Page) -> list[str]:
    """What is wrong with a page for fingers."""
    return misfits(page, touch=True) + violations(page, **_ON_A_PHONE)


#: By look: how a page is looked at, and the window in which it is loaded.
_LOOKS: dict[str, tuple[Callable[[Page], list[str]], dict[str, Any]]] = {
    "desktop": (on_a_desktop, {"viewport": _DESKTOP, "reduced_motion": "reduce"}),  # no transitions
    "phone": (on_a_phone, PHONE),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("look", _LOOKS)
@pytest.mark.parametrize("which", _PATHS)
def test_pages_and_dialogs_fit_and_satisfy_axe(web: Web, worker: str, open_page: Open, which: str, look: str) -> None:
    faults, window = _LOOKS[look]
    page = open_page("/", **window)
    # A page that renews itself while it is measured is another page.
    page.evaluate("localStorage.setItem('palermo.every', '0')")
    wrong = {}

    for path in _PATHS[which].split():
        answer = page.goto(web.url + path.format(worker=worker))
        assert answer is not None
        assert answer.ok is ("nowhere" not in path), path
        if which == "dialogs" and not path.endswith("/edit"):
            page.locator("dialog[open]").wait_for()
        wrong[path] = faults(page)

    assert {path: found for path, found in wrong.items() if found} == {}
