"""That the pages are easy to use: by keyboard, without script, in one's own theme."""

from playwright.sync_api import Page, TimeoutError, expect

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
    expect(page.get_by_label("Search all jobs")).to_be_focused()
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
