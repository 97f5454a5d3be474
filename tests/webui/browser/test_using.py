"""That the pages are easy to use: by keyboard, without script, in one's own theme, by forms in dialogs."""

import re
import time
from collections.abc import Callable

from playwright.sync_api import Page, TimeoutError, expect

from palermo.worker.handle import WorkerHandle
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.browser.conftest import Open, path_of
from tests.webui.server import Web


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


def test_the_keyboard_leads_everywhere_and_can_be_told_not_to(web: Web, open_page: Open) -> None:
    for name in ("first", "second"):
        web.client.enqueue("shop.resize", ["cat.png"], queue=name)
    page = open_page("/", viewport={"width": 1366, "height": 420})

    page.keyboard.press("?")
    help = page.get_by_role("dialog", name="Keys and help")
    expect(help).to_be_visible()
    # They are read from the top.
    assert help.evaluate("dialog => [dialog.scrollTop, document.activeElement.tagName]") == [0, "H2"]
    page.keyboard.press("Escape")
    lead(page, "q", "/queues")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/second")
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search all jobs")).to_be_focused()
    page.keyboard.type("first\n")
    page.wait_for_url("**/search?q=first")
    expect(page.get_by_role("link", name="first", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/first")

    page.get_by_role("link", name="Keys and help").click()
    page.get_by_label("Use these keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("o")

    assert path_of(page) == "/queues/first"


def test_a_filter_is_offered_after_other_words_and_taken_away_by_its_cross(web: Web, open_page: Open) -> None:
    web.client.enqueue("shop.send", ["order 7"], queue="orders")
    web.client.enqueue("shop.send", ["order 7"], queue="mail")
    page = open_page("/")
    field = page.get_by_role("combobox", name="Search all jobs")

    field.press_sequentially("order que")
    assert page.locator('#search-offers option[value="order queue:orders"]').count() == 1
    field.fill("queue:orders order")
    field.press("Enter")
    expect(page.locator("#waiting-title + .count")).to_have_text("1")
    page.get_by_role("link", name="Search without queue:orders").click()

    expect(page.locator("#waiting-title + .count")).to_have_text("2")


def test_the_row_that_the_keys_have_chosen_stays_chosen_when_it_moves(web: Web, open_page: Open) -> None:
    for name in ("mail", "news", "post"):
        web.client.enqueue("shop.resize", ["cat.png"], queue=name)
    page = open_page("/queues")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="news")).to_be_focused()

    web.client.enqueue("shop.resize", ["cat.png"], queue="bills")
    expect(page.locator("#live tbody tr").first).to_contain_text("bills")
    page.keyboard.press("x")

    expect(page.get_by_label("Select news")).to_be_checked()
    expect(page.locator("[data-select]:checked")).to_have_count(1)
    expect(page.locator("#live tbody th")).to_contain_text(["bills", "mail", "news", "post", "failed"])


def test_selected_workers_are_offered_their_actions(open_page: Open, start: Callable[..., WorkerHandle]) -> None:
    start()
    page = open_page("/workers")
    box, actions = page.get_by_label("Select worker"), page.get_by_role("group", name="Actions on the selected workers")
    expect(box).to_be_visible()
    expect(actions).to_be_hidden()

    box.check()

    expect(actions).to_contain_text("1 selected")
    actions.get_by_role("button", name="Quiet").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def test_everything_is_read_and_done_without_script(web: Web, open_page: Open) -> None:
    job = web.client.enqueue("shop.resize", ["cat.png"], queue="images")
    page = open_page("/", java_script_enabled=False)
    told = page.locator(".flash")

    page.get_by_role("link", name="images", exact=True).click()
    expect(page.get_by_text("cat.png")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(told).to_contain_text("images is paused")
    page.locator(f"a[title='{job.id}']").click()
    expect(page.locator("#args")).to_have_text('["cat.png"]')
    page.get_by_role("link", name="images", exact=True).first.click()
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Remove 1 job").click()
    expect(told).to_contain_text("Removed 1 job from images")

    page.goto(f"{web.url}/enqueue")
    page.get_by_label("Job", exact=True).fill("shop.resize")
    page.locator("input[name=queue]").fill("mail")
    page.get_by_label("Positional arguments").fill('["dog.png"')
    page.get_by_role("button", name="Enqueue", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("are not valid JSON")
    page.get_by_label("Positional arguments").fill('["dog.png"]')
    page.get_by_role("button", name="Enqueue", exact=True).click()

    search = page.get_by_role("combobox", name="Search all jobs")
    search.fill("que:mail")
    search.press("Enter")
    expect(search).to_have_accessible_description(re.compile("^There is no filter 'que:'"))
    search.fill("queue:mail")
    search.press("Enter")
    expect(page.get_by_text("dog.png")).to_be_visible()


def test_a_page_whose_stream_is_blocked_asks_now_and_then(web: Web, open_page: Open) -> None:
    page = open_page("/")
    page.route("**/live?*", lambda route: route.fulfill(status=204))
    page.evaluate("localStorage.setItem('palermo.every', '1')")
    page.goto(web.url + "/queues")
    web.client.enqueue("shop.resize", ["cat.png"], queue="later")
    expect(page.get_by_role("link", name="later")).to_be_visible()


def test_theme_and_exact_times_are_kept_from_page_to_page(web: Web, open_page: Open) -> None:
    publish_failed(
        web.client,
        (message("early"), failure(at=int(time.time()) + 7_300)),  # by a clock that is ahead
        (message("late"), failure(at=int(time.time()) - 7_300)),
    )
    page = open_page("/failures", color_scheme="light")
    ahead, past = (page.get_by_role("cell", name=text) for text in ("clock 2 h ahead", "2 h ago"))
    expect(ahead).to_be_visible()
    expect(past).to_be_visible()
    page.locator(".menu:not(.range) summary").click()
    page.get_by_label("Theme").select_option("dark")
    page.get_by_role("button", name="Exact times").click()

    page.reload()

    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    expect(page.get_by_role("cell", name=re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$"))).to_have_count(2)
    page.keyboard.press("t")
    expect(ahead).to_be_visible()
