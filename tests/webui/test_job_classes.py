"""The page of all job classes, and the page of one: rates, times, errors by group, last runs and options."""

import html
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

import palermo
from palermo.jobs import registry
from tests.helpers import eventually
from tests.history.written import ended, write
from tests.history.written import failed as failed_run
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.server import Web

_NASTY = "<b>&\"a/b' ?window=x"


def shown(web: Web, path: str) -> str:
    answer = web.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def counted(job: str, **numbers: int) -> dict[str, Any]:
    times = {"run": {"40": sum(numbers.values())}, "wait": {"20": sum(numbers.values())}}
    return {"kind": "counts", "at": time.time() - 60, "queue": "mail", "job": job, **numbers, **times}


@pytest.fixture
def send() -> Iterator[str]:
    """A job whose code this process has."""

    class Letters:
        """Send letters.

        With stamps.
        """

        def process(self, to: str, *, copies: int = 1) -> None: ...

    name = "classes.letters.Send"
    options: dict[str, Any] = {"retries": 3, "timeout": 300, "retry_on": (OSError,)}
    palermo.job(name=name, queue="letters", limit=2, limit_key=lambda to: to, **options)(Letters)
    yield name
    registry.unregister(name)


def test_a_job_class_has_its_rates_times_errors_and_last_runs_on_one_page(web: Web) -> None:
    at = time.time() - 60
    write(web.client, [counted("classes.pay", succeeded=40, failed=2), counted("classes.other", succeeded=3)])
    write(web.client, [ended("good", at=at, job="classes.pay"), failed_run("bad", at=at, job="classes.pay")])
    write(web.client, [ended("foreign", at=at, job="classes.other")])
    publish_failed(
        web.client,
        *((message(f"pay-{nth}", job="classes.pay"), failure("shop.Declined", "no funds")) for nth in range(3)),
        (message("other-1", job="classes.other"), failure("shop.Elsewhere", "no")),
    )
    eventually(lambda: "foreign" in shown(web, "/history"))
    eventually(lambda: "shop.Declined" in shown(web, "/classes/classes.pay"))

    page = shown(web, "/classes/classes.pay")

    assert "42 jobs processed, 2 of them failed" in page
    assert "3 failed jobs" in page
    assert ("shop.Elsewhere" in page, "foreign" in page) == (False, False)
    assert (">good<" in page, ">bad<" in page) == (True, True)
    assert "This web process has not imported the code of this job" in page
    [group] = [part.split('"')[0] for part in page.split('href="/failures?')[1:] if "group=" in part.split('"')[0]]
    assert "pay-1" in shown(web, "/failures?" + html.unescape(group))


def test_all_job_classes_are_listed_the_busiest_first_and_found_by_name(web: Web) -> None:
    write(web.client, [counted("classes.rare", succeeded=1), counted("classes.busy", succeeded=40, failed=2)])
    write(web.client, [counted(_NASTY, succeeded=1)])
    eventually(lambda: "classes.busy" in shown(web, "/classes"))

    page = shown(web, "/classes?window=hour")

    assert page.index("classes.busy") < page.index("classes.rare")
    assert 'aria-label="42 runs, 2 failed"' in page
    assert (_NASTY in page, _NASTY in html.unescape(page)) == (False, True)
    found = shown(web, "/classes?name=BUSY")
    assert ("classes.busy</a>" in found, "classes.rare</a>" in found) == (True, False)
    assert "No job class matches." in shown(web, "/classes?name=nothing")
    assert "/classes/classes.busy?window=hour" in shown(web, "/statistics")
    nasty = shown(web, f"/classes/{quote(_NASTY, safe='')}")
    assert ("<h1>&lt;b&gt;" in nasty, "1 jobs processed" in nasty) == (True, True)
    assert "no numbers of this job class" in shown(web, "/classes/nowhere")


def test_the_options_are_shown_of_a_job_whose_code_is_imported(web: Web, send: str) -> None:
    web.inspector.recurring.put("letters at night", send, cron="0 2 * * *", args=["all"])
    eventually(lambda: send in shown(web, "/classes"))

    page = html.unescape(shown(web, f"/classes/{send}"))

    assert "Send letters." in page
    assert "(to: str, *, copies: int = 1)" in page
    for option, value in (("timeout", "5 min 0 s"), ("retries", "3"), ("retry_on", "OSError")):
        assert f"<dt>{option}</dt><dd>{value}</dd>" in page
    assert "<dt>limit_key</dt><dd>by " in page
    assert '<a href="/queues/letters">letters</a>' in page
    assert "letters at night" in page
    assert re.search(rf'name="job"[^>]* value="{re.escape(send)}"', page)


def test_with_the_journal_off_a_job_class_still_has_its_options(settings: Any, serve: Any, send: str) -> None:
    web = serve(replace(settings, journal="off"))

    assert send in shown(web, "/classes")
    page = shown(web, f"/classes/{send}")
    assert ("the setting journal is" in page, "retry_on" in page) == (True, True)
