"""Things that several share, in a real browser: groups that subscribe to events, tenants of a queue, keys, limits."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from palermo.worker.handle import WorkerHandle
from tests.helpers import eventually
from tests.webui.browser.conftest import Open
from tests.webui.server import Web

Start = Callable[..., WorkerHandle]


def confirm(page: Page, opener: str, button: str) -> None:
    page.get_by_role("button", name=opener, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


def test_the_wiring_is_drawn_with_counts_and_old_events_are_replayed(web: Web, open_page: Open, start: Start) -> None:
    worker = start()
    eventually(lambda: [row["group"] for row in web.inspector.topics()] == ["audit", "stock"])
    for number in range(3):
        web.client.publish("order.paid", {"number": number})
    eventually(lambda: web.inspector.wiring()["kept"] == 3)
    page = open_page("/topics")

    drawn = page.get_by_role("region", name="The way of events to their groups")
    expect(drawn.locator(".exchange")).to_have_count(2)
    expect(drawn.locator("text.topic")).to_contain_text(["order.#", "order.paid"])
    expect(drawn.get_by_text("0 waiting, 0 running, 1 worker", exact=True)).to_have_count(2)
    expect(page.get_by_text("3 kept", exact=True)).to_be_visible()

    # A worker that does not run for a second counts as gone, and is not told.
    eventually(lambda: web.inspector.control("quiet", None))
    eventually(lambda: [row["state"] for row in web.inspector.workers()] == ["quiet"])
    confirm(page, "Replay old events to stock", "Replay")

    expect(page.locator(".flash")).to_contain_text("3 events")
    expect(page.get_by_role("row").filter(has_text="stock").get_by_role("cell").nth(2)).to_have_text("3")
    assert worker.pid


def test_a_tenant_is_cleared_and_the_others_keep_their_jobs(web: Web, open_page: Open) -> None:
    for tenant, count in (("acme", 5), ("globex", 2)):
        web.client.enqueue_many(
            [("browser.send", [f"{n}@example.com"], {}) for n in range(count)], tenant=tenant, queue="mail"
        )
    page = open_page("/tenants")

    expect(page.get_by_role("row").filter(has_text="acme")).to_contain_text("5")
    confirm(page, "Clear acme", "Remove 5 jobs")

    expect(page.get_by_role("row").filter(has_text="acme")).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="globex")).to_contain_text("2")
    assert eventually(lambda: web.inspector.size("mail") == 2)


def test_a_key_is_freed_and_a_limit_is_seen_to_hold_jobs_back(web: Web, open_page: Open, start: Start) -> None:
    web.client.enqueue("browser.send", ["eu"], queue="by hand", unique="until_done", unique_key="eu")
    page = open_page("/unique")

    confirm(page, "Free browser.send:eu", "Free")

    expect(page.get_by_text("No job has a key.")).to_be_visible()
    web.client.enqueue_many([("browser.wait", ["gate"], {}) for _ in range(3)], queue="slow", limit=1)
    start(concurrency=2)
    page.get_by_role("link", name="Limits").click()
    expect(page.get_by_role("row").filter(has_text="browser.wait").get_by_role("cell")).to_have_text(
        ["1", "1", "2", ""]
    )
