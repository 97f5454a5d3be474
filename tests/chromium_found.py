"""Finds the browser that the tests drive: the first of these that is here, or can be had.

    PALERMO_TEST_CHROMIUM       the path of a Chromium or Chrome
    chromium, google-chrome     installed here
    Playwright's own            downloaded before
    apt-get install             as root on Debian
    playwright install          a download of Playwright's own

If none can be had, the browser tests are skipped, and say so: all that the pages do is tested without one too.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.debian import NotInstalled, can_install, first_of, install, one_at_a_time

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_ADVICE = """no browser for the tests. Do one of these and run them again:
  * install Chromium (Debian: apt-get install chromium; elsewhere: python -m playwright install chromium);
  * set PALERMO_TEST_CHROMIUM=/path/to/chromium."""


@cache
def find() -> Path:
    """The browser's program. May take minutes the first time: it may download one.

    Raises NotInstalled.
    """
    return first_of(_ADVICE, _given, _installed, _own, _from_packages, _downloaded)


def _given() -> Path:
    path = os.environ.get("PALERMO_TEST_CHROMIUM")
    if not path:
        raise NotInstalled("PALERMO_TEST_CHROMIUM: not set.")
    return Path(path)


def _installed() -> Path:
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise NotInstalled(f"{', '.join(_NAMES)}: not on the PATH.")
    return Path(found)


def _own() -> Path:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    if not path.exists():
        raise NotInstalled(f"Playwright's own: not at {path}.")
    return path


def _from_packages() -> Path:
    if not can_install():
        raise NotInstalled("apt-get install chromium: not root on a Debian system.")
    install("chromium")
    return _installed()


def _downloaded() -> Path:
    with one_at_a_time("chromium"):
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise NotInstalled(f"python -m playwright install chromium:\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return _own()
