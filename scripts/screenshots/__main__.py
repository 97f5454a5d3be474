"""`make screenshots`: the pictures of docs/images.

They show a shop's jobs on the embedded broker, which two workers run while the pictures are taken.
"""

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from palermo.client.actor import Actor
from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests import chromium_found
from tests.webui.server import Web

_IMAGES = Path(__file__).parents[2] / "docs" / "images"

#: Seconds that the shop is open before the first picture, which fill most of the charts.
_OPEN_FOR = 480

_DESKTOP = {"viewport": {"width": 1200, "height": 800}}
_PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

#: The pages of each look. Each picture is shown by the README or by docs/guides/pages.md.
_LOOKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "desktop": (_DESKTOP, ("overview", "failures", "job", "workers", "statistics", "recurring")),
    "phone": (_PHONE, ("overview",)),
}


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palermo-shop-")))
        shutil.copy(Path(__file__).with_name("shop.py"), folder)
        settings = Settings(url=f"sqlite:///{folder}/jobs.db", journal="all", release="2.14.0")
        web = stack.enter_context(Web(settings))
        closed = threading.Event()
        shop = threading.Thread(target=run_shop, args=(web, closed))
        shop.start()
        stack.callback(shop.join)
        stack.callback(closed.set)
        log = stack.enter_context((folder / "worker.log").open("ab"))
        for queues, slots in (("payments,mail,images", 4), ("images,reports", 3)):
            with contextlib.chdir(folder):
                worker = start_worker(["shop"], queues=queues.split(","), concurrency=slots, settings=settings, log=log)
            stack.callback(worker.stop, 1.0)
        until = time.monotonic() + _OPEN_FOR
        while time.monotonic() < until:
            web.http.get("/")
            time.sleep(5)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium_found.find(), args=["--no-sandbox"])
        stack.callback(browser.close)
        operate(web)
        for name, (look, titles) in _LOOKS.items():
            take(browser, web, name, look, titles)


def run_shop(web: Web, closed: threading.Event) -> None:
    """Enqueue the jobs of customers until the shop is closed."""
    chance = random.Random(4)
    web.client.enqueue("shop.reports.Nightly", ["2026-11-20"], queue="reports")
    web.client.enqueue_many(
        ("legacy.crm.Sync", ({"customer": 1_000 + nth, "fields": ["name", "address"]},), {"force": False})
        for nth in range(240)
    )
    digest = {"job": "shop.reports.Nightly", "queue": "reports"}
    web.inspector.recurring.put("daily digest", cron="0 6 * * 1-5", tz="Europe/Rome", args=["yesterday"], **digest)
    web.inspector.recurring.put("monthly invoice run", cron="30 2 1 * *", tz="Europe/Rome", args=["month"], **digest)
    web.inspector.recurring.put("stock levels", every=21_600, args=["stock"], missed="skip", **digest)
    web.inspector.recurring.switch("stock levels", on=False)
    for nth in range(70):
        letter = ([f"customer{nth}@example.com"], {"order": 900 + nth, "subject": "How was it?"})
        web.client.enqueue("shop.mail.SendReceipt", *letter, queue="mail", delay=600 * 1.12**nth)
    order = 1_000
    while not closed.wait(chance.uniform(0.02, 0.25)):
        order += 1
        charged = [{"id": order, "lines": [{"sku": "A-17", "count": 2}, {"sku": "C-3", "count": 1}], "total": "41.90"}]
        web.client.enqueue("shop.payments.Charge", charged, {"card_token": "tok_9f8e7d"}, queue="payments")
        web.client.enqueue("shop.mail.SendReceipt", [f"customer{order}@example.com"], {"order": order}, queue="mail")
        if order % 4 == 0:
            web.client.enqueue("shop.images.Resize", [f"/uploads/{order}.png"], {"width": 1280}, queue="images")


def operate(web: Web) -> None:
    """Do what two operators do."""
    anna = web.inspector.on_behalf_of(Actor("anna", "web"))
    ben = web.inspector.on_behalf_of(Actor("ben@ops-1", "cli"))
    anna.queues.pause("images")
    anna.failed.requeue([row["id"] for row in web.inspector.failed.list(limit=3).rows])
    anna.queues.resume("images")
    ben.failed.discard([web.inspector.failed.list(limit=1).rows[0]["id"]])
    ben.workers.control("stack", None)


def take(browser: Browser, web: Web, name: str, look: dict[str, Any], titles: Sequence[str]) -> None:
    window = browser.new_context(**look)
    page = window.new_page()
    declined = next(row for row in web.inspector.failed.list().rows if "JSONDecodeError" in row["error"]["class"])
    paths = {"overview": "/", "job": f"/jobs/{declined['id']}"}
    for title in titles:
        page.goto(web.url + paths.get(title, f"/{title}"))
        page.locator("#live .card:visible").first.wait_for()
        page.wait_for_timeout(1_500)
        page.screenshot(path=_IMAGES / f"{title}-{name}.png")
    window.close()


if __name__ == "__main__":
    main()
