"""The lists of queues on the overview and on their page: which of many are on a page, and in which order."""

import re
import time
from html import unescape

import pytest

from palermo.contract.rows import Row
from palermo.webui.state import live_state
from palermo.webui.state.live_state import OldestJobs
from tests.helpers import eventually
from tests.history.written import write
from tests.inspector.jobs import message, publish
from tests.webui.server import Web


def listed(web: Web, address: str) -> list[str]:
    """The queues that a page lists, in its order."""
    return re.findall(r'<th scope="row" class="whole"><a href="[^"]*">([^<]*)</a>', web.http.get(address).text)


def queue_rows(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    """Let the broker tell of these queues; each has a worker and ten waiting jobs, unless its row says otherwise."""
    usual = {"pending": 10, "in_progress": 0, "workers": 1, "paused": False}
    whole = sorted((usual | row for row in rows), key=lambda row: row["name"])
    monkeypatch.setattr("palermo.inspector.context._queue_rows", lambda found: whole)


def many(count: int) -> list[str]:
    return [f"q-{number:03}" for number in range(count)]


def test_of_many_queues_100_are_on_a_page_and_all_are_counted(web: Web) -> None:
    names = many(250)
    publish(web.client, *(message(name, queue=name) for name in names))

    overview, second, last = (web.http.get(path).text for path in ("/", "/queues?page=2", "/queues?page=3"))

    assert listed(web, "/") == [*names[:100], "failed"]
    assert listed(web, "/queues") == [*names[:100], "failed"]
    assert listed(web, "/queues?page=2") == [*names[100:200], "failed"]
    assert listed(web, "/queues?page=3") == [*names[200:], "failed"]
    assert "1 to 100 of 250 queues" in overview
    assert '<a class="button small" href="/queues?page=2" rel="next">Next</a>' in overview
    assert "<dt>Waiting</dt><dd>250</dd>" in overview
    assert 'href="?page=3" rel="next">Next</a>' in second
    assert 'hx-get="/queues?page=2"' in second
    assert "201 to 250 of 250 queues" in last
    assert "Page 9 is past the end: there are 250 queues." in web.http.get("/queues?page=9").text
    assert web.http.get("/api/queues").json()["total"] == 251


def test_a_filter_by_name_stays_from_page_to_page(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    queue_rows(monkeypatch, *({"name": name} for name in ("failed", "mail", *many(250))))

    first = unescape(web.http.get("/queues?name=Q-").text)

    assert "1 to 100 of 250 queues" in first
    assert 'href="?name=Q-&page=2" rel="next"' in first
    assert listed(web, "/queues?name=Q-&page=3") == many(250)[200:]
    assert "No queue of jobs matches." in web.http.get("/queues?name=nothing").text


def test_pausing_selected_queues_keeps_page_and_filter(web: Web) -> None:
    names = many(150)
    publish(web.client, *(message(name, queue=name) for name in ("mail", *names)))
    text = unescape(web.http.get("/queues?name=q-&page=2").text)
    pause, resume = re.findall(r'action="(/queues/(?:pause|resume)-selected[^"]*)"', text)[::-1]

    for address, said in ((pause, "Paused q-120."), (resume, "Resumed q-120.")):
        shown = web.form("/queues?name=q-&page=2", address, id=["q-120"])
        assert said in shown.text
        assert str(shown.url).endswith("/queues?name=q-&page=2")
    assert web.form("/queues", "/queues/resume-selected", id=["q-120"]).url.query == b""


def test_queues_in_trouble_come_first_and_the_others_by_name(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    queue_rows(
        monkeypatch,
        *({"name": name} for name in ("failed", *many(150))),
        {"name": "x-empty", "pending": 0, "workers": 0},
        {"name": "x-empty-and-paused", "pending": 0, "paused": True},
        {"name": "y-paused", "paused": True},
        {"name": "z-unserved", "workers": 0},
        {"name": "y-unserved", "workers": 0},
    )

    for address in ("/", "/queues"):
        assert listed(web, address) == ["y-unserved", "z-unserved", "y-paused", *many(97), "failed"]
    assert listed(web, "/queues?page=2") == [*many(150)[97:], "x-empty", "x-empty-and-paused", "failed"]


def test_busy_queues_are_on_the_first_page_beside_more_than_100_in_trouble(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [f"busy-{number:02}" for number in range(20)]
    queue_rows(
        monkeypatch,
        *({"name": name, "workers": 0} for name in many(118)),
        *({"name": name, "in_progress": 2} for name in busy),
        {"name": "a-empty", "pending": 0, "workers": 0},
    )

    first, second = (listed(web, f"/queues?page={number}") for number in (1, 2))

    assert first == listed(web, "/") == [*many(80), *busy]
    assert second == [*many(118)[80:], "a-empty"]
    assert "118 of 139 queues are in trouble." in web.http.get("/").text


def test_a_queue_whose_first_job_waits_too_long_comes_before_paused_ones(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(web.client, message("1", queue="z-late", created_at=int(time.time()) - 2_000))
    queue_rows(monkeypatch, *({"name": name} for name in many(150)), {"name": "z-late"}, {"name": "p", "paused": True})

    eventually(lambda: listed(web, "/")[:3] == ["z-late", "p", "q-000"])


def test_of_many_queues_of_failed_jobs_those_with_jobs_are_shown(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [f"failed:{name}" for name in many(150)]
    queue_rows(
        monkeypatch,
        {"name": "mail"},
        {"name": "failed", "pending": 0},
        *({"name": name, "pending": name.endswith("9")} for name in apart),
    )

    shown = listed(web, "/queues")

    assert shown[:17] == ["mail", *apart[9::10], "failed"]
    assert len(shown) == 101
    assert "And 51 queues of failed jobs more." in web.http.get("/queues").text


def test_what_is_known_of_other_queues_is_kept_while_somebody_looks_at_one(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(web.client, message("1", queue="mail"), message("2", queue="bills"))
    mail, bills = ({"name": name, "pending": 1} for name in ("mail", "bills"))
    oldest = OldestJobs(web.inspector)

    assert [set(oldest.of([row])) for row in (mail, bills)] == [{"mail"}, {"bills"}]
    assert set(oldest.known()) == {"mail", "bills"}
    oldest.of([mail | {"pending": 0}])
    assert set(oldest.known()) == {"bills"}
    monkeypatch.setattr(live_state, "_OLDEST_KEPT", -1.0)
    oldest.of([mail])
    assert set(oldest.known()) == {"mail"}


def test_of_many_queues_those_in_front_are_read_first(web: Web) -> None:
    names = many(50)
    publish(web.client, *(message(name, queue=name) for name in names))
    oldest = OldestJobs(web.inspector)

    assert list(oldest.of({"name": name, "pending": 1} for name in names)) == names[:20]


def test_queues_that_share_a_worker_each_have_their_own_rates(web: Web) -> None:
    publish(web.client, message("a", queue="mail"), message("b", queue="payments"))
    counts = {"kind": "counts", "at": time.time() - 30, "job": "shop.send"}
    write(
        web.client,
        [
            {**counts, "queue": "mail", "enqueued": 3_000, "succeeded": 1_500},
            {**counts, "queue": "payments", "enqueued": 300, "succeeded": 140, "failed": 10},
        ],
    )

    def shown() -> dict[str, tuple[float, float]]:
        rates = (
            r'<th scope="row".*?>(mail|payments)</a>.*?data-label="in">([\d,.]+)</td>.*?data-label="out">([\d,.]+)</td>'
        )
        rows = re.findall(rates, web.http.get("/queues").text, re.DOTALL)
        return {name: (float(came.replace(",", "")), float(ended)) for name, came, ended in rows}

    found = eventually(lambda: rows if (rows := shown()) and all(came for came, _ in rows.values()) else None)

    (mail_in, mail_out), (payments_in, payments_out) = found["mail"], found["payments"]
    assert mail_in / mail_out == pytest.approx(2, rel=0.1)
    assert payments_in / payments_out == pytest.approx(2, rel=0.1)
    assert mail_in / payments_in == pytest.approx(10, rel=0.1)
