"""The jobs of the browser tests, as a worker imports them from a directory of the test's own."""

import json
import time
from pathlib import Path

import palermo


@palermo.job(queue="mail", name="browser.send")
def send(to: str, *, subject: str = "hello") -> None:
    """A job that works."""


@palermo.job(queue="orders", name="browser.parse")
def parse(text: str) -> None:
    """A job that fails on what is no JSON, some frames deep in the library."""
    read(text)


def read(text: str) -> object:
    return json.loads(text)


@palermo.job(queue="slow", name="browser.wait")
def wait(for_file: str) -> None:
    """A job that runs until a file is there."""
    while not Path(for_file).exists():
        time.sleep(0.02)
