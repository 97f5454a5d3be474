"""That the pages are easy to use: by keyboard, without script, on a phone, with a screen reader."""

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, TimeoutError, expect

from palermo.core.journal_records import encode
from palermo.worker.handle import start_worker
from tests.helpers import eventually
from tests.history.written import ended, enqueued, write
from tests.history.written import failed as failed_
from tests.scale import chosen
from tests.webui.browser.conftest import PHONE, Open, path_of
from tests.webui.server import Web

_AXE = (Path(__file__).parent / "axe.min.js").read_text()

#: Axe is slow: what a look cannot change is checked in one of them.
_LOOKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "light": ({"color_scheme": "light"}, {"resultTypes": ["violations"]}),
    "dark": ({"color_scheme": "dark"}, {"runOnly": ["color-contrast"]}),
    "phone": ({"color_scheme": "light", **PHONE}, {"runOnly": ["target-size", "label", "link-name"]}),
}


def lead(page: Page, key: str, to: str) -> None:
    """Go there by "g" and this key, which have to follow each other within 1.5 s: again if the machine stood still."""
    for _ in range(10):
        page.keyboard.press("g")
        page.keyboard.press(key)
        try:
            page.wait_for_url(f"**{to}", timeout=6_000)
        except TimeoutError:
            continue
        return
    raise AssertionError(f"g {key} leads to {page.url}, and not to {to}")


def violations(page: Page, **options: Any) -> list[str]:
    """What axe finds wrong, with where."""
    page.evaluate(_AXE)
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [f"{each['id']}: {node['html'][:160]}" for each in found["violations"] for node in each["nodes"]]


@pytest.mark.parametrize("look", chosen(["light", "phone"], "dark"))
def test_every_page_is_clean_for_axe_and_fits_its_window(web: Web, open_page: Open, look: str, tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("ab") as log,
        start_worker(["palermo.demo.jobs"], settings=web.client.settings, log=log),
    ):
        web.client.enqueue("palermo.demo.jobs.parse", ["/nowhere.py"], queue="demo")
        eventually(lambda: len(web.inspector.failed()) == 1)
        web.client.enqueue("shop.resize", ["cat.png"], {"width": 640}, queue="images")
        web.client.enqueue("shop.resize", ["cat.png"], queue="images", tenant="acme", share=2)
        web.client.enqueue("shop.resize", ["cat.png"], queue="images", unique="until_done")
        web.inspector.pause("images")
        counted = encode("w", [{"kind": "worker_up", "at": time.time() - 99, "release": "1.4.2"}])
        web.client.run(lambda broker: broker.journal.append(counted))
        eventually(lambda: "demo.jobs.parse" in web.http.get("/statistics").text)
        line = {**ended("told", "log"), "text": "a line of its log"}
        write(web.client, [enqueued("told"), line, *(ended(id) for id in ("told", "other")), failed_("bad")])
        [failed] = web.inspector.failed().rows
        [worker] = web.inspector.workers()
        window, axe = _LOOKS[look]
        page = open_page("/", **window)
        wrong = {}
        for path in (
            "/",
            "/?ask=help",
            "/queues",
            "/queues/images",
            "/queues/images?ask=delete",
            "/queues?ask=enqueue",
            "/queues?ask=pause-all",
            f"/jobs/{failed['id']}",
            "/jobs/nowhere",
            "/workers",
            f"/workers/{worker['id']}",
            "/statistics",
            "/statistics?window=month&queue=demo",
            "/history",
            "/topics",
            "/clients?queue=images",
            "/unique",
            "/limits",
            "/jobs/told",
            "/audit",
        ):
            page.goto(web.url + path)
            wrong[path] = violations(page, **axe)
            if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                wrong[path].append("wider than the window")

    assert {path: found for path, found in wrong.items() if found} == {}


def test_everything_is_read_and_a_queue_paused_and_cleared_without_script(web: Web, open_page: Open) -> None:
    job = web.client.enqueue("shop.resize", ["cat.png"], queue="images")
    page = open_page("/", java_script_enabled=False)

    page.get_by_role("link", name="images").click()
    expect(page.get_by_text("cat.png")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".flash")).to_contain_text("Paused images")
    page.get_by_role("link", name=job.id[:8]).click()
    expect(page.locator("#args")).to_have_text('["cat.png"]')
    page.get_by_role("link", name="images").first.click()
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Remove 1 job").click()

    expect(page.locator(".flash")).to_contain_text("Removed 1 job from images")
    assert web.inspector.size("images") == 0


def test_the_keyboard_leads_everywhere_and_can_be_told_not_to(web: Web, open_page: Open) -> None:
    for name in ("first", "second"):
        web.client.enqueue("shop.resize", ["cat.png"], queue=name)
    page = open_page("/")

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys and help")).to_be_visible()
    page.keyboard.press("Escape")
    lead(page, "q", "/queues")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/second")
    page.keyboard.press("/")
    expect(page.get_by_label("Find a job by its id")).to_be_focused()
    page.keyboard.type("first\n")
    page.wait_for_url("**/queues/first")

    page.get_by_role("link", name="Keys and help").click()
    page.get_by_label("Keys do this on these pages").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("o")

    assert path_of(page) == "/queues/first"


def test_live_updates_wait_while_a_dialog_is_open_and_go_on_after(web: Web, open_page: Open) -> None:
    web.client.enqueue("shop.resize", ["cat.png"], queue="images")
    page = open_page("/queues/images")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator(".live-state")).to_have_text("Held")

    web.client.enqueue("shop.resize", ["dog.png"], queue="images")
    expect(page.locator(".live-state[data-pending]")).to_have_text("Held")
    expect(page.get_by_text("dog.png")).to_have_count(0)
    page.keyboard.press("Escape")

    expect(page.get_by_text("dog.png")).to_be_visible()


def test_where_the_stream_is_blocked_the_page_asks_now_and_then(web: Web, open_page: Open) -> None:
    page = open_page("/")
    page.route("**/live?*", lambda route: route.fulfill(status=204))
    page.evaluate("localStorage.setItem('palermo.every', '1')")
    page.goto(web.url + "/queues")

    web.client.enqueue("shop.resize", ["cat.png"], queue="images")

    expect(page.get_by_role("link", name="images")).to_be_visible()


def test_theme_and_exact_times_are_kept_from_page_to_page(web: Web, open_page: Open) -> None:
    web.client.enqueue("shop.resize", ["cat.png"], queue="images")
    page = open_page("/queues/images", color_scheme="light")
    page.get_by_label("Theme").select_option("dark")
    page.get_by_role("button", name="Exact times").click()

    page.reload()

    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    assert page.locator("td time").last.inner_text().startswith("20")
