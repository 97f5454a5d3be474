"""Recurring jobs in the API and on their page, on each broker."""

import json
import re
from typing import Any
from urllib.parse import quote

from palermo.jobs.redaction import MASK
from tests.helpers import eventually
from tests.history.written import ended, write
from tests.webui.server import Web, text_of


def add(web: Web, name: str = "sweep", **more: Any) -> None:
    times = {} if "cron" in more else {"every": 3_600}
    web.inspector.recurring.put(name, more.pop("job", "shop.sweep"), **times, **more)


def test_a_recurring_job_has_a_page_with_its_next_times_and_its_past_runs(web: Web) -> None:
    add(web, "nightly", cron="0 3 * * *", tz="Europe/Rome", args=["eu"])
    add(web, "nightly too")
    due = 1_795_251_600.0
    runs = {"2026-11-21T09:00:00Z": 0, "2026-11-22T09:00:00Z": 86_400, "2026-11-22T10:11:12Z-0123abcd": 90_672}
    ran = {"job": "shop.sweep", "queue": "jobs"}
    done = [{**ended(f"nightly@{tick}", at=due + later + 9, **ran), "took": 2.0} for tick, later in runs.items()]
    done[1] |= {"kind": "failed", "error": "shop.TooDeep", "message": "no floor"}
    write(web.client, [*done, ended("nightly too@2026-11-22T09:00:00Z", job="shop.sweep", queue="jobs")])
    web.page("/history", "nightly too")

    page = web.http.get("/recurring/nightly")
    text = text_of(page)

    assert re.findall(r"\d\d:\d\d:\d\d CES?T", text) == [f"03:00:00 {word}" for word in re.findall(r"CES?T", text)]
    assert len(re.findall(r"CES?T", text)) == 10
    for said in ("2026-11-21 09:00:00 UTC", "7.0 s", "shop.TooDeep", "started by hand", "3 runs, 1 failed", "'eu'"):
        assert said in text or said in page.text, said
    assert "nightly too@" not in page.text
    assert '<a class="mono" href="/classes/shop.sweep">' in page.text
    assert '<a href="/recurring/nightly%20too">nightly too</a>' in web.http.get("/recurring").text
    assert web.http.get("/recurring/none").status_code == 404


def test_the_list_has_a_small_chart_of_the_last_runs_of_each(web: Web) -> None:
    add(web, "nightly")
    add(web, "me@home@noon")
    add(web, "never")
    known = {"job": "shop.sweep", "queue": "jobs"}
    hours = [f"2026-11-21T{hour:02}:00:00Z" for hour in range(24)]
    runs = [ended(f"nightly@{hour}", "failed" if nth > 20 else "succeeded", **known) for nth, hour in enumerate(hours)]
    tried = [ended(f"me@home@noon@{hours[0]}", kind, **known) for kind in ("retried", "retried", "succeeded")]
    by_hand = ended(f"me@home@noon@{hours[1]}-0123abcd", **known)
    others = [ended("nightly@home", **known), ended("another", **known)]
    write(web.client, [*runs, *tried, by_hand, *others])

    def sparks() -> list[str]:
        return re.findall(r'aria-label="(\d+ runs, \d+ failed); the height of a bar', web.http.get("/recurring").text)

    eventually(lambda: sparks() == ["2 runs, 0 failed", "20 runs, 3 failed"])


def test_one_is_run_once_with_other_arguments_and_edited_on_its_page(web: Web) -> None:
    add(web, "a b/c", args=["eu", 1], kwargs={"password": "hunter2", "deep": False}, queue="slow")
    web.inspector.recurring.switch("a b/c", on=False)
    before = web.inspector.recurring.list()
    own = f"/recurring/{quote('a b/c', safe='')}"
    page = web.http.get(own).text
    assert ("hunter2" in page, "3600" in page) == (False, True)

    ran = web.form(own, f"{own}/run-with", args='["us"]', kwargs=json.dumps({"password": MASK}))
    assert "Enqueued shop.sweep as job" in ran.text
    waiting = [(row["args"], row["kwargs"]) for row in web.inspector.jobs.list("slow")]
    assert waiting == [(["us"], {"password": "hunter2"})]
    for above, action, wrong, said in (
        (own, "edit", "{}", "must be a JSON list"),
        (own, "run-with", "[", "are not valid JSON"),
        ("/recurring", "add", "{}", "must be a JSON list"),
    ):
        again = web.form(above, f"{above}/{action}", every="5m", args=wrong)
        assert (again.status_code, said in text_of(again)) == (422, True)
        assert f'<dialog id="{action}" aria-labelledby="{action}-title" open>' in again.text
    assert web.inspector.recurring.list() == before

    fields = {"cron": "*/5 * * * *", "tz": "Europe/Rome", "every": "", "queue": "fast", "args": '["us", 1]'}
    done = web.form(own, f"{own}/edit", **fields, kwargs=json.dumps({"password": MASK, "deep": True}))
    assert "Saved a b/c." in done.text
    [row] = web.inspector.recurring.list()
    assert (row["job"], row["cron"], row["every"], row["tz"]) == ("shop.sweep", "*/5 * * * *", None, "Europe/Rome")
    assert (row["queue"], row["enabled"], row["args"]) == ("fast", False, ["us", 1])
    assert row["kwargs"] == {"password": "hunter2", "deep": True}
