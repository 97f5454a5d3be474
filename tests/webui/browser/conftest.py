"""A browser, and the pages of an embedded broker in it."""

import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from palermo.settings.settings import Settings
from palermo.worker.handle import WorkerHandle, start_worker
from tests import chromium_found
from tests.rabbitmq_tidy import delete_all
from tests.webui.server import Web

_HERE = Path(__file__).parent

#: Opens a page of the web server under test, in a window of its own with these options of Playwright's new_context.
Open = Callable[..., Page]

#: Two cores may have a broker, a worker, a server and this browser to run, and other tests beside.
expect.set_options(timeout=60_000)

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("browser")


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = chromium_found.find()
    with sync_playwright() as playwright:
        # Without its sandbox it also starts as root, in a container; it sees our own pages only. It does not play the
        # graphics card that is not there: that took half of its start, and a part of every page.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-software-rasterizer"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def exchange(rabbitmq_url: str) -> Iterator[str]:
    """As everywhere; but Playwright has an event loop in this thread, so that another has to tidy up."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    with ThreadPoolExecutor(1) as thread:
        thread.submit(delete_all, rabbitmq_url, name).result()


@pytest.fixture
def open_page(chromium: Browser, web: Web) -> Iterator[Open]:
    """Fails the test for whatever the browser complains about."""
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A page that is not there, a form that is refused and a broker that is away are answers that tests ask for.
        expected = re.search(r"(status of|Error Code) (404|422|503)", message.text)
        if message.type in ("error", "warning") and not expected:
            complaints.append(message.text)

    with ExitStack() as windows:

        def start(path: str, **options: Any) -> Page:
            window = windows.enter_context(chromium.new_context(**options))
            window.set_default_timeout(60_000)
            page = window.new_page()
            page.on("console", heard)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(web.url + path)
            return page

        yield start
    assert complaints == []


@contextmanager
def workers(folder: Path, settings: Settings) -> Iterator[Callable[..., WorkerHandle]]:
    """Starts workers that have the jobs of shop.py."""
    shutil.copy(_HERE / "shop.py", folder)
    with ExitStack() as running, (folder / "worker.log").open("ab") as log:

        def start(**options: Any) -> WorkerHandle:
            # Some tests end while a job runs.
            with chdir(folder):
                handle = start_worker(["shop"], settings=settings, log=log, **{"shutdown_timeout": 2.0, **options})
            return running.enter_context(handle)

        yield start


@pytest.fixture
def start(tmp_path: Path, settings: Settings) -> Iterator[Callable[..., WorkerHandle]]:
    with workers(tmp_path, settings) as start:
        yield start


def path_of(page: Page) -> str:
    return urlsplit(page.url).path
