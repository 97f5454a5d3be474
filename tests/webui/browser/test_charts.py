"""The charts in a browser: their numbers are read off, they are zoomed, and a bar leads to its jobs."""

import time

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.helpers import eventually
from tests.history.written import failed, write
from tests.webui.browser.conftest import PHONE, Open, path_of
from tests.webui.server import Web

#: What a job of the chart's counted.
COUNTS = {"kind": "counts", "queue": "mail", "job": "shop.send"}


@pytest.fixture(scope="module")
def web(served: Web) -> Web:
    """Half an hour of work: in each part of 30 seconds 8 jobs, one of which failed; one in the middle has a name."""
    web = served
    now = time.time() // 30 * 30 + 15
    counted = {**COUNTS, "succeeded": 7, "failed": 1, "enqueued": 9, "run": {"40": 8}, "wait": {"20": 8}}
    write(web.client, [{**counted, "at": now - 30 * nth} for nth in range(60, 0, -1)])
    write(web.client, [failed(f"job-{nth}", at=now - 30 * nth) for nth in range(60, 0, -1)])
    write(web.client, [{"kind": "worker_up", "at": now - 600, "release": "1.4.2"}])
    eventually(lambda: "job-1" in web.http.get("/history").text)
    return web


def plot(page: Page) -> Locator:
    return page.locator(".drawing .u-over").first


def at(page: Page, part: float) -> tuple[float, float]:
    """The point of the first chart at this part of its width."""
    box = plot(page).bounding_box()
    assert box is not None
    return box["x"] + part * box["width"], box["y"] + box["height"] / 2


def zoom(page: Page) -> None:
    """Drag over a fifth of the first chart."""
    expect(page.get_by_text("Drag to zoom").first).to_be_visible()
    page.mouse.move(*at(page, 0.6))
    page.mouse.down()
    page.mouse.move(*at(page, 0.7))
    page.mouse.move(*at(page, 0.8))
    page.mouse.up()


@pytest.mark.parametrize("window", [{}, PHONE], ids=["pointer", "finger"])
def test_a_chart_shows_numbers_and_links_to_the_jobs_of_a_time(open_page: Open, window: dict[str, object]) -> None:
    page = open_page("/statistics", **window)
    page.evaluate("localStorage.setItem('palermo.every', '0')")
    page.reload()
    expect(page.get_by_role("img", name="480 jobs processed, 60 of them failed")).to_be_visible()

    plot(page).scroll_into_view_if_needed()
    if window:
        page.touchscreen.tap(*at(page, 0.75))
    else:
        page.mouse.move(*at(page, 0.75))
    tip = page.locator(".tip:visible")
    for line in ("succeeded7", "failed1", "enqueued9"):
        expect(tip).to_contain_text(line)
    if window:
        page.get_by_role("link", name="Jobs that ended").tap()
    else:
        page.mouse.click(*at(page, 0.75))

    page.wait_for_url("**/history?since=*")
    expect(page.locator("table.history tbody tr")).to_have_count(1)


def test_a_zoom_holds_in_all_charts_and_in_the_address(web: Web, open_page: Open) -> None:
    page = open_page("/statistics")
    jobs = page.get_by_role("link", name="Jobs that ended")

    zoom(page)
    page.wait_for_url("**/statistics#zoom=*")
    expect(jobs).to_have_count(3)
    zoomed, ended = page.url, jobs.first.inner_text()
    with page.expect_response(lambda answer: answer.url.endswith("/statistics")):
        page.evaluate("window.htmx.trigger(document.body, 'palermo:refresh')")
    expect(jobs).to_have_count(3)
    page.reload()
    expect(jobs.first).to_have_text(ended)
    assert page.url == zoomed
    page.get_by_role("button", name="Zoom out").first.click()
    expect(jobs).to_have_count(0)
    page.wait_for_url("**/statistics")

    page.goto(zoomed)
    page.reload()
    page.get_by_role("link", name="Statistics of this time").first.click()
    page.wait_for_url("**/statistics?since=*&until=*")
    expect(page.get_by_text("jobs in 10 s")).to_be_visible()
    assert path_of(page) == "/statistics"
    assert page.locator("input[name=since]").input_value().endswith("Z")

    # It goes on with new numbers where it was zoomed.
    page = open_page("/statistics")
    expect(page.get_by_role("img", name="480 jobs processed")).to_be_visible()
    zoom(page)
    page.evaluate("document.querySelector('.drawing canvas').same = true")

    write(web.client, [{**COUNTS, "succeeded": 20, "at": time.time()}])

    expect(page.get_by_role("img", name="500 jobs processed")).to_be_visible()
    assert page.evaluate("document.querySelector('.drawing canvas').same") is True
    expect(page.get_by_role("link", name="Jobs that ended")).to_have_count(3)
