"""The index of failed jobs answers as the queue would."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.errors import StoreInvalid
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.judges import GroupJudge
from palermo.webui.failed import index as indexing
from palermo.webui.failed.entry import EntryBuilder, split
from palermo.webui.failed.index import Index
from tests.inspector.jobs import failure, message


def failed(id: str, reason: Failure | None, **fields: object) -> Message:
    return replace(message(id, id, **fields), failure=reason, retries=0)  # type: ignore[arg-type]


_TWO_LINES = Failure(
    exception_class="shop.errors.Refused",
    message="first line\nat second.line",
    stack_trace='Traceback\n  File "a/b.py", line 1, in work\nshop.errors.Refused: first line\nat second.line\n',
    failed_at=300,
)

JOBS = [
    failed("a-1", failure("ValueError", "no such address", at=100), queue="mail", job="shop.send"),
    failed("a-2", failure("ValueError", "no such ADDRESS", at=200), queue="mail", job="shop.send"),
    failed("b-1", failure("shop.errors.Refused", "Straße <b>&</b>", at=200), queue="orders", job="shop.pay"),
    failed("b-2", _TWO_LINES, queue="orders", job="shop.pay[1]"),
    failed("c-1", None, queue="mail", job=""),
    failed("c-2", replace(failure("KeyError", ""), stack_trace="", failed_at=0), queue="x*y", preview="'Zürich', 1"),
    replace(failed("r-1", failure("KeyError", "again", at=250)), retries=3, policy_retries=2),
    replace(failed("r-2", failure("KeyError", "by policy", at=260)), retries=2, policy_retries=2),
    replace(failed("w-1", failure("OSError", "gone", at=270)), worker="pid:7@web-1/worker-2", tenant="acme"),
    replace(failed("w-2", failure("OSError", "gone", at=270)), worker="pid:8@web-2/worker-2", tenant="acme.eu"),
    failed("d-1", replace(failure("Bad\ud800", "lone \ud800 surrogate"), failed_at=10**12), queue="mail"),
]

FILTERS = [
    FailedFilter(),
    *(FailedFilter(queue=name) for name in ("mail", "m*", "x*y", "nowhere", "[mo]*")),
    *(FailedFilter(job=name) for name in ("shop.send", "shop.*", "shop.pay[1]")),
    *(FailedFilter(error=name) for name in ("ValueError", "Refused", "shop.errors.*", "*Error", "refused")),
    *(FailedFilter(text=text) for text in ("ADDRESS", "strasse", "zürich", "a-1", "in work", "line\nat", "b.py", "%")),
    *(FailedFilter(requeued=flag) for flag in (True, False)),
    *(FailedFilter(since=at) for at in (0, 200, 200.9, 10**11)),
    *(FailedFilter(until=at) for at in (0, 199.5, 200, 10**13)),
    *(FailedFilter(worker=name) for name in ("pid:7@web-1", "pid:7@web-1/worker-2", "*@web-2", "pid:7", "*/worker-2")),
    *(FailedFilter(tenant=name) for name in ("acme", "acme*", "nobody")),
    FailedFilter(queue="mail", error="ValueError", text="send", since=150),
]


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.close()


def put(index: Index, messages: list[Message], reading: int = 1) -> None:
    taking = EntryBuilder(lambda message: message.preview)
    index.put([taking.entry(each) for each in messages], reading)


def ids(index: Index, filter: FailedFilter = FILTERS[0], *, newest: bool = False) -> list[str]:
    return [each.message.id for each in index.page(filter, offset=0, limit=100, newest=newest)]


@pytest.mark.parametrize("filter", FILTERS, ids=str)
@pytest.mark.parametrize("many", [0, 100], ids=["many hits", "few hits"])
def test_a_filter_finds_what_it_matches(
    index: Index, filter: FailedFilter, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "MANY_HITS", many)
    put(index, JOBS)

    expected = sorted(each.id for each in JOBS if filter.matches(each))
    assert sorted(ids(index, filter)) == expected
    assert index.count(filter) == len(expected)


def test_groups_are_those_of_the_command_line_and_hold_their_jobs(index: Index) -> None:
    put(index, JOBS)
    grouping = GroupJudge(FailedFilter())
    for each in JOBS:
        grouping(each)

    groups, total = index.groups(FailedFilter())

    assert total == len(groups) == len(grouping.rows())
    assert [(each.fingerprint, each.count, each.sample.id) for each in groups] == [
        (row["fingerprint"], row["count"], row["id"]) for row in grouping.rows()
    ]
    one = FailedFilter(group=groups[0].fingerprint)
    assert sorted(ids(index, one)) == sorted(each.id for each in JOBS if one.matches(each))
    assert index.count(one) == groups[0].count == 2


def test_a_history_counts_each_failure_once(index: Index) -> None:
    put(index, [failed(str(n), failure(at=1_000 + n)) for n in range(100)])

    [group], _ = index.groups(FailedFilter(), parts=10)

    assert group.history == (10,) * 10


def test_newest_first_is_by_time_then_by_place_and_a_copy_counts_not(index: Index) -> None:
    copy = failed("1", failure(at=70))
    put(index, [failed("1", failure(at=50)), failed("2", failure(at=70)), failed("3", failure(at=50)), copy])

    assert ids(index, newest=True) == ["2", "3", "1"]
    assert ids(index) == ["1", "3", "2"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
def test_a_job_comes_back_as_it_was(index: Index, job: Message) -> None:
    put(index, JOBS)

    found = index.job(job.id)

    assert found is not None
    assert found.whole
    trace = job.failure and job.failure.stack_trace.encode(errors="replace").decode()
    reason = found.message.failure
    assert (found.message.body, found.message.queue, found.message.job) == (job.body, job.queue, job.job)
    assert (reason and reason.stack_trace) == trace
    assert (reason and reason.failed_at) == (job.failure and job.failure.failed_at)


def test_a_reading_forgets_what_is_gone_and_knows_the_new_error_of_a_job(index: Index) -> None:
    put(index, [failed("1", failure("ValueError", at=50)), failed("2", failure(at=60)), failed("3", failure())], 1)
    put(index, [failed("2", failure(at=60)), replace(failed("1", failure("KeyError", at=50)), retries=1)], 2)
    index.drop_unseen(2)

    assert ids(index, FailedFilter(error="KeyError")) == ["1"]
    assert index.count(FailedFilter(error="ValueError")) == 1
    assert index.count(FailedFilter()) == index.count(FailedFilter(text="address")) == 2
    assert index.job("3") is None


def test_beyond_the_bound_the_oldest_are_left_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MAX_JOBS", 3)

    put(index, [failed(str(n), failure(at=n + 1)) for n in range(10)])
    index.drop_unseen(1)

    assert ids(index) == ["7", "8", "9"]


def test_bodies_beyond_the_bound_are_forgotten_oldest_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MAX_BODY_BYTES", 1_000)
    monkeypatch.setattr(indexing, "_DROPPED_AT_ONCE", 1)

    put(index, [replace(failed(str(n), failure(at=n + 1)), body=b"x" * 300) for n in range(10)])

    assert [each.whole for each in index.page(FILTERS[0], offset=0, limit=10, newest=True)] == [True] * 3 + [False] * 7


@pytest.mark.parametrize("text", [None, "x"], ids=["filling", "searching"])
def test_a_full_disk_empties_the_index_and_the_next_reading_fills_it(index: Index, text: str | None) -> None:
    put(index, JOBS)
    index.drop_unseen(1)
    version = index.version
    more = [failed(str(n), failure("ValueError", f"{n} x")) for n in range(3_000)]
    if text is not None:
        put(index, more)
    index._db.execute("pragma max_page_count = 1")  # SQLite takes the present size for it, if that is larger.

    with pytest.raises(StoreInvalid, match=r"index of failed jobs.*full.*TMPDIR"):
        put(index, more) if text is None else index.count(FailedFilter(text=text))

    assert (ids(index), index.complete) == ([], False)
    assert index.version > version
    put(index, JOBS, 2)
    index.drop_unseen(2)
    assert (index.count(FailedFilter()), index.count(FailedFilter(text="address"))) == (len(JOBS), 2)
    assert index.complete


def test_a_reading_in_which_the_index_was_emptied_does_not_complete_it(index: Index) -> None:
    put(index, JOBS[:3])
    index._index.reset()
    put(index, JOBS[3:])
    index.drop_unseen(1)
    assert not index.complete

    put(index, JOBS, 2)
    index.drop_unseen(2)

    assert index.complete


def test_a_closed_index_is_empty_and_takes_nothing(index: Index) -> None:
    put(index, JOBS)

    index.close()

    assert (ids(index), index.groups(FailedFilter()), index.job("a-1")) == ([], ([], 0), None)
    with pytest.raises(StoreInvalid, match="closed"):
        put(index, JOBS)


@pytest.mark.parametrize(
    ("trace", "message", "frames"),
    [
        ("Traceback\n  File\nValueError: x is 1\n", "x is 1", "Traceback\n  File\n"),
        ("Traceback\n  File\nValueError\n", "", "Traceback\n  File\n"),
        ("Traceback\n  File\nValueError: a\nb\n", "a\nb", "Traceback\n  File\n"),
        ("Traceback\n", "elsewhere", "Traceback\n"),
        ("", "", ""),
    ],
)
def test_a_traceback_is_split_before_the_line_that_says_the_message(trace: str, message: str, frames: str) -> None:
    assert split(trace, message) == (frames, trace[len(frames) :])
