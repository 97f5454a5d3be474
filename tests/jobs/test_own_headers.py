"""Headers of one's own, from the enqueue to the hooks, the logs and the rows."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import palermo
from palermo.errors import OptionInvalid
from palermo.testing import Palermo
from palermo.worker import logs

Lines = Callable[[], list[dict[str, Any]]]

HEADERS = {"request-id": "r-17", "shard": 3, "api-key": "s3cret"}


@pytest.fixture
def test() -> Iterator[Palermo]:
    with Palermo(raise_failures=False) as test:
        yield test


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The lines that jobs have logged, as JSON."""
    stream, root = io.StringIO(), logging.getLogger("shop")
    handler = logs.LineHandler(stream, logs.JsonFormatter())
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logs.NamingRecords(factory))
    root.addHandler(handler)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)
    logging.setLogRecordFactory(factory)


def test_headers_travel_to_the_job_its_hooks_and_reports(test: Palermo) -> None:
    seen: list[Any] = []

    def current_headers() -> dict[str, Any]:
        job = palermo.current_job()
        assert job is not None
        return {name: value for name, value in job.headers.items() if name in HEADERS}

    palermo.failure_backend(lambda report: seen.append(("report", report.headers)))

    @palermo.job(name="headed", retries=1, backoff=60, keep_result=True, tenant="acme", limit=1)
    def headed() -> None:
        seen.append(("run", current_headers()))
        raise ValueError

    @headed.hook
    def before_process() -> None:
        seen.append(("hook", current_headers()))

    with pytest.raises(OptionInvalid, match="header 'tenant' is reserved for Palermo"):
        headed.options(headers={"tenant": "acme"})
    headed.options(headers=HEADERS).enqueue()
    for _ in range(2):
        test.work()
        test.clock.advance(60)
    [failed] = test.inspector().failed.list()
    test.inspector().failed.requeue([failed["id"]])
    test.work()

    runs = [("hook", HEADERS), ("run", HEADERS)]
    assert seen == [*runs, *runs, ("report", HEADERS), *runs]


def test_lines_that_a_job_logs_have_its_headers(test: Palermo, lines: Lines) -> None:
    @palermo.job(name="headed")
    def headed() -> None:
        logging.getLogger("shop").warning("about %d", 7)

    headed.options(headers=HEADERS).enqueue()
    headed.enqueue()
    test.work()
    logging.getLogger("shop").warning("outside")

    assert [line.get("headers") for line in lines()] == [HEADERS, None, None]
