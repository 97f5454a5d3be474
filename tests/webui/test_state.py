"""The pages from what they see: rates, the chart, the life of a job, tracebacks, arguments."""

import json
import threading
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from palermo.errors import BrokerUnavailable
from palermo.history.series import Cell, Tally, Window
from palermo.history.statistics import Deploy, Report
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Sample, Snapshot
from palermo.webui.render.charts import throughput
from palermo.webui.render.formats import absolute, ago, due, duration, elapsed, name, pretty_json, rate
from palermo.webui.render.tracebacks import parts_of
from palermo.webui.state.live_state import Sampler
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.waiting import WaitingHistory
from tests.helpers import HANGS

_OWN = 'Traceback (most recent call last):\n  File "/srv/shop/mail.py", line 4, in send\n    connect(to)\n'
_LIBRARY = (
    '  File "/usr/lib/python3.11/socket.py", line 1, in connect\n    raise error\n'
    '  File "/venv/lib/python3.12/site-packages/smtp/client.py", line 7, in open\n    socket.connect()\n    ^^^^^\n'
)


def test_the_chart_has_a_bar_for_every_busy_five_seconds() -> None:
    samples = [Sample(at=at, span=2.5, processed=10, failed=2) for at in (992.5, 995.0, 1000.0)]

    chart = throughput(samples, 1000.0)

    assert [(good > 0, bad > 0) for good, bad in chart.plot.rows].count((True, True)) == 2
    assert (chart.processed_count, chart.failed_count) == (30, 6)


def journal(*cells: tuple[float, int, int]) -> Report:
    """A report whose cells of 30 seconds begin at these instants, with jobs that succeeded and failed."""
    tallies = [Tally(numbers={"succeeded": good, "failed": bad}) for _, good, bad in cells]
    return Report(
        since=0.0,
        until=1000.0,
        known=0.0,
        total=Tally(),
        cells=[Cell(start, 30.0, tally) for (start, _, _), tally in zip(cells, tallies, strict=True)],
        deploys=[Deploy(300.0, "old"), Deploy(990.0, "1.4.2")],
        parts={},
        lost=0,
    )


def test_the_time_before_the_first_look_and_no_other_is_filled_from_the_journal() -> None:
    samples = [Sample(at=1000.0, span=10.0, processed=10, failed=2)]
    often = [Sample(at=at, span=2.0, processed=4, failed=1) for at in (996.0, 998.0, 1000.0)]

    chart = throughput(samples, 1000.0, report=journal((360.0, 500, 0), (900.0, 60, 30), (960.0, 15, 0)))
    seen = throughput(often, 1000.0, report=journal((990.0, 11, 4)))

    assert (chart.processed_count, chart.failed_count, chart.seen) == (115, 32, 600.0)
    assert sum(good > 0 for good, _ in chart.plot.rows) == 6 + 6 + 2
    assert [deploy.release for deploy in chart.plot.deploys] == ["1.4.2"]
    assert sum(good + bad for good, bad in chart.plot.rows) * 5 == pytest.approx(115, abs=0.1)
    assert (seen.processed_count, seen.failed_count) == (15, 4)


def test_the_maximum_of_waiting_jobs_is_known_by_queue_and_in_all() -> None:
    history = WaitingHistory()
    for at, mail, failed in ((7200.0, 5, 90), (7210.0, 9, 90), (7235.0, 2, 90)):
        rows = [("mail", mail), ("images", 1), ("failed", failed)]
        history.add([{"name": name, "pending": count} for name, count in rows], at)

    found = history.of(Window.HOUR, 7240.0, "mail")

    assert found is not None
    assert (found.most[-2:], set(found.most[:-2])) == ([9, 2], {None})
    assert found.start + found.step * len(found.most) == 7260.0
    everything = history.of(Window.DAY, 7240.0)
    assert everything is not None
    assert everything.most[-1] == 10
    assert (history.of(Window.HOUR, 7240.0, "failed"), history.of(Window.MONTH, 7240.0)) == (None, None)
    history.add([{"name": "images", "pending": 1}], 3 * 86_400.0)
    assert history.of(Window.DAY, 3 * 86_400.0, "mail") is None, "a queue that has been gone for a day"


def test_own_frames_stand_out_and_library_frames_are_folded() -> None:
    own, folded, final = [part for part in parts_of(_OWN + _LIBRARY + "OSError: no route") if part.kind != "text"]
    of_libraries = parts_of(f"Traceback (most recent call last):\n{_LIBRARY}OSError: no route")

    assert (own.kind, own.frames[0].file, own.frames[0].source) == ("frame", "mail.py", ("connect(to)",))
    assert (folded.kind, [frame.file for frame in folded.frames]) == ("folded", ["socket.py", "client.py"])
    assert (final.kind, final.lines) == ("final", ("OSError: no route",))
    assert [part.kind for part in of_libraries] == ["text", "folded", "frame", "final"], "the last one is in view"


def test_what_is_no_traceback_and_arguments_are_shown_as_they_are() -> None:
    for text in ("", "at Shop.send(Shop.java:3)\n\tat Main.main", '  File "x", line 1', "…\n\n  x"):
        parts = parts_of(text)
        lines = [line for part in parts for line in part.lines] + [each.path for part in parts for each in part.frames]
        words = {word.strip('",') for word in text.split()} - {"File", "line", "1", ""}
        assert all(word in "".join(lines) for word in words), text
    for value in (None, [], {}, "a", {"a": [1, 2.5, None, True], "b": {"c": "x" * 90}}, ['é"\\', "true: 1"] * 20):
        laid_out = pretty_json(value)
        assert json.loads(laid_out.text) == value
        assert "".join(text for _, text in laid_out.pieces()) == laid_out.text


def test_numbers_durations_times_and_names_are_short() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    assert [duration(each) for each in (0.2, 59.9, 61)] == ["0 s", "59 s", "1 min 1 s"]
    assert [duration(each) for each in (3_661, 90_000)] == ["1 h 1 min", "1 d 1 h"]
    assert [rate(each) for each in (None, 0, 0.01, 2.345, 1234.5)] == ["–", "0", "<0.1", "2.3", "1,234"]
    assert [ago(at, now) for at in ("2026-11-21T11:58:30Z", "never")] == ["1 min ago", "never"]
    assert [due(at, now) for at in ("2026-11-21T11:58:30Z", "2026-11-21T13:00:00Z")] == ["1 min ago", "in 1 h"]
    for at in ("0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"):
        assert (ago(at, now), absolute(at)) == (at, at), "UTC has no such instant"

    for written, age, run in (
        ("11:59:00", "1 min ago", "1 min 0 s"),
        ("12:00:40", "now", "0 s"),
        ("14:05:00", "clock 2 h ahead", "clock 2 h ahead"),
    ):
        instant = f"2026-11-21T{written}Z"
        assert (ago(instant, now), elapsed(instant, now)) == (age, run)

    long = "shop.<wbr>mails.<wbr>send_<wbr>Generate<wbr>Stock<wbr>Report__<wbr>v2"
    assert name(long.replace("<wbr>", "")) == long
    assert (name("shop.send_mail"), name("<b>" * 8)) == ("shop.send_mail", "&lt;b&gt;" * 8)


class Broker:
    """Stands for an inspector: it lists one queue, or says that the broker is not there."""

    def __init__(self) -> None:
        self.queue, self.pending, self.is_there = "mail", 1, True

    def workers(self) -> list[dict[str, Any]]:
        return []

    def snapshot(self) -> Snapshot:
        if not self.is_there:
            raise BrokerUnavailable("no broker")
        queues = [{"name": self.queue, "pending": self.pending, "in_progress": 0}]
        return Snapshot(at=0.0, queues=queues, workers=self.workers())


def sampler_of(broker: Broker, **options: Any) -> Sampler:
    """A sampler that looks when it is asked, and not by itself."""
    stop = threading.Event()
    stop.set()
    return Sampler(cast(Inspector, broker), stop=stop, **{"patience": 60, **options})


def test_what_a_user_changed_is_asked_for_again_after_the_broker_was_away() -> None:
    broker = Broker()
    sampler = sampler_of(broker, clock=lambda: 1_000.0)
    sampler.snapshot()
    sampler.invalidate()
    broker.pending, broker.is_there = 0, False
    with pytest.raises(BrokerUnavailable):
        sampler.snapshot(60.0)

    broker.is_there = True

    assert sampler.snapshot(60.0).queues[0]["pending"] == 0


def test_failed_jobs_stay_listed_while_the_pages_read_them() -> None:
    broker, reading = Broker(), [False]
    sampler = sampler_of(broker, reads_failed=lambda: reading[0])
    broker.queue, broker.pending = "failed", 40_000
    sampler.snapshot()

    def failed(left: int, *, read: bool) -> int:
        broker.pending, reading[0] = left, read
        return int(sampler.snapshot(0).queues[0]["pending"])

    assert [failed(30_000, read=True), failed(0, read=True)] == [40_000, 40_000]
    assert failed(39_999, read=False) == 39_999


def test_a_slow_brokers_last_state_is_shown_until_a_change() -> None:
    broker, go_on = Broker(), threading.Event()
    sampler = sampler_of(broker, patience=0.01)
    sampler.snapshot()
    broker.pending = 2
    broker.workers = lambda: go_on.wait(60) and []  # type: ignore

    assert sampler.snapshot(0).queues[0]["pending"] == 1
    assert sampler.samples() is not None  # It does not wait either.
    sampler.invalidate()
    threading.Timer(0.1, go_on.set).start()

    assert sampler.snapshot(0).queues[0]["pending"] == 2


def test_a_value_that_was_begun_before_a_change_is_not_kept() -> None:
    go_on, values = threading.Event(), iter(("old", "new"))

    def make() -> str:
        value = next(values)
        assert value == "new" or go_on.wait(HANGS)
        return value

    shared = Refreshing(make, fresh=60.0)
    before = shared.begin()
    shared.clear()

    assert shared.get() == "new"
    go_on.set()
    assert before.result(HANGS) == "old"
    assert shared.get() == "new"


def test_a_slow_sample_is_shown_longer_and_renewed_before_it_is_too_old() -> None:
    broker, now = Broker(), [1_000.0]
    sampler = sampler_of(broker, clock=lambda: now[0])

    def sample(seconds: float) -> None:
        """Have the next sample, a minute later, take so many seconds."""

        def workers() -> list[dict[str, Any]]:
            now[0] += seconds
            broker.pending += 1
            return []

        broker.workers = workers  # type: ignore[method-assign]
        now[0] += 60
        sampler.snapshot()

    def shown_after(seconds: float) -> bool:
        """Whether the same sample is shown so many seconds later."""
        before = sampler.snapshot(60.0)
        now[0] += seconds
        return sampler.snapshot() is before

    # Seconds that a sample takes, and is shown for, and after which it is renewed: 2 s, as for all; 10 * took - 2 *
    # took; 2 - 2 * took; half of 2 s, so that the broker rests for as long.
    for took, shown_for, due_in in (
        *((0.01, 0.5, 2.0), (0.1, 1.0, 0.8), (0.15, 1.5, 1.2)),
        *((0.4, 2.0, 1.2), (1.0, 2.0, 1.0), (3.0, 2.0, 1.0)),
    ):
        sample(took)
        assert round(sampler.due_in(), 3) == due_in, took
        assert shown_after(shown_for - 0.05), took
        assert not shown_after(0.1), took
    sample(3.0)
    for seconds, due_in in ((0.9, 0.1), (59.1, 0.0)):
        now[0] += seconds
        assert round(sampler.due_in(), 3) == due_in
    sampler.snapshot(by_person=False)
    assert sampler.due_in() == 10.0
    sampler.invalidate()
    last = sampler.last
    assert sampler.snapshot() is not last


def test_the_version_of_a_snapshot_follows_what_pages_show() -> None:
    broker = Broker()
    sampler = sampler_of(broker)
    worker = {"id": "1", "started_at": None, "processed": 0, "failed": 0, "jobs": []}

    def version(**changed: Any) -> int:
        broker.workers = lambda: [{**worker, **changed}]  # type: ignore[method-assign]
        return sampler.snapshot(0).version

    first = version(last_seen="2026-11-27T12:00:00Z")

    assert version(last_seen="2026-11-27T12:00:05Z") == first
    broker.pending = 2
    second = version(last_seen=None)
    third = version(last_seen=None, failed=1)
    assert len({first, second, third}) == 3
    broker.pending = 1
    assert version(last_seen=None, failed=1) not in {first, second, third}
