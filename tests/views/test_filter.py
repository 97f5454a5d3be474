"""The filter of jobs: its text, and that every index finds exactly the jobs that it matches."""

from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from palermo.core.failure import Failure
from palermo.core.journal_records import RecordKind
from palermo.core.message import Message
from palermo.errors import OptionInvalid
from palermo.history import entry
from palermo.history.entry import FINAL, STATES
from palermo.history.index import Index as HistoryIndex
from palermo.views.facts import facts_of_failed
from palermo.views.filter import NAMES, Chip, Facts, JobFilter, chips, filter_of, parse_filter
from palermo.webui import tuning
from palermo.webui.failed.entry import EntryBuilder
from palermo.webui.failed.index import Index as FailedIndex
from tests.history.written import batch

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("state:failed queue:mail error:Timeout", {"state": "failed", "queue": "mail", "error": "Timeout"}),
        ('queue:"my mail" "no answer" from bank', {"queue": "my mail", "text": "no answer from bank"}),
        ("since:1h until:@1799999999", {"since": NOW - 3_600, "until": NOW - 1}),
        ("since:2027-01-15T08:00:00Z", {"since": NOW}),
        ("state:pending,working", {"state": "waiting,running"}),
        ("due_from:1h due_until:@1800000007", {"due_from": NOW + 3_600, "due_until": NOW + 7}),
        ("requeued:false longer:1m group:6f62", {"requeued": False, "longer": 60.0, "group": "6f62"}),
        ('worker:7@web-1 "a:b" https://x', {"worker": "7@web-1", "text": "a:b https://x"}),
        *((text, {"text": text}) for text in ("pid:7@web-1", "12:30", "ValueError: no")),
    ],
)
def test_a_text_means_a_filter(text: str, wanted: dict[str, Any]) -> None:
    assert parse_filter(text, NOW) == JobFilter(**wanted)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quue:mail", r"no filter 'quue:'. Did you mean 'queue'\? The filters are queue, job"),
        ("state:faild", "no state 'faild'. Did you mean 'failed'"),
        ("queue: mail", "queue: has no value. Write queue:mail without a space"),
        ('queue:""', "queue: has no value"),
        ("queue:mail queue:slow", "queue: is given twice. Write queue:mail,slow to match either"),
        ("since:yesterday", "\"since\" is 'yesterday'; write a duration before now, such as 90s"),
        ("due_from:x", "\"due_from\" is 'x'; write a duration from now, such as 90s"),
        ("longer:x", "\"longer\" is 'x'; write a duration"),
        ("requeued:maybe", "\"requeued\" is 'maybe'; write true or false"),
    ],
)
def test_a_text_that_means_nothing_is_refused(text: str, told: str) -> None:
    with pytest.raises(OptionInvalid, match=told):
        parse_filter(text, NOW)


def test_conditions_beside_a_text_narrow_it_and_none_is_given_twice() -> None:
    assert filter_of({"filter": "queue:mail since:1h", "job": "send"}, NOW) == JobFilter(
        queue="mail", job="send", since=NOW - 3_600
    )
    with pytest.raises(OptionInvalid, match="\"queue\" is given twice: as 'slow' and in the filter 'queue:mail'"):
        filter_of({"filter": "queue:mail", "queue": "slow"}, NOW)
    with pytest.raises(OptionInvalid, match='"filter" is blank'):
        filter_of({"filter": " "}, NOW)


def test_a_text_is_taken_apart_into_chips() -> None:
    assert chips('a queue:"x y" b') == [Chip("queue", "x y"), Chip("", "a b")]
    assert [str(chip) for chip in chips('queue:"x y" "a:b"')] == ['queue:"x y"', '"a:b"']


# -- every index finds what the filter matches

NAME = st.sampled_from(["mail", "MAIL", "mail-low", "Straße", "a,b", "x*y", "=mail", ""])
WANTED = st.one_of(st.sampled_from(["mail", "=mail", "M*L", "ss", "=a,b", "low,x", "*", ",", "="]), NAME).filter(
    str.strip
)
ID = st.sampled_from(["f1", "F10", "2f1", "mail"])
AT = st.integers(1_000, 1_005)
TEXT = st.sampled_from(["f1", "F", "mail", "%", "_", "no", "NO SUCH", "strasse", "1", "a!b"])

TIME = st.sampled_from([999, 1_000, 1_001, 1_001.5, 1_003, 1_006])
SECONDS = st.sampled_from([0, 0.5, 1, 3])

CONDITIONS: dict[str, st.SearchStrategy[Any]] = {
    "state": st.sampled_from(["failed", "done", "done,failed", "retrying", "cancelled,done", "running"]),
    **dict.fromkeys(NAMES, WANTED),
    **dict.fromkeys(("since", "until", "due_from", "due_until"), TIME),
    **dict.fromkeys(("longer", "shorter"), SECONDS),
    "text": TEXT,
    "group": st.sampled_from(["6f62"]),
    "requeued": st.booleans(),
}


def one_of(name: str) -> st.SearchStrategy[tuple[str, Any]]:
    return CONDITIONS[name].map(lambda value: (name, value))


#: Of more conditions than two at once hardly any job meets all.
FILTER = st.lists(st.one_of(*map(one_of, CONDITIONS)), max_size=2).map(lambda chosen: JobFilter(**dict(chosen)))

MESSAGE = st.builds(
    Message,
    id=ID,
    queue=NAME,
    job=NAME,
    tenant=NAME,
    worker=st.sampled_from([None, "pid:7@mail", "pid:7@mail/worker-2", "mail"]),
    retries=st.sampled_from([None, 0, 3]),
    preview=st.sampled_from([None, "'no%_'", "1"]),
    failure=st.one_of(
        st.none(),
        st.builds(
            Failure,
            exception_class=NAME,
            message=st.sampled_from(["no such a!b", "Straße", ""]),
            stack_trace=st.sampled_from(["", 'File "mail.py", line 1, in NO\n']),
            failed_at=st.one_of(AT, st.just(0)),
        ),
    ),
)

RECORD = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([kind.value for kind in STATES.values()]),
        "id": ID,
        "at": AT.map(float),
        "queue": NAME,
        "job": NAME,
        "took": st.one_of(st.none(), SECONDS.map(float)),
    },
    optional={"error": NAME, "message": st.sampled_from(["no such a!b", "Straße", "100%_"])},
)

PROPERTY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@PROPERTY
@given(
    messages=st.lists(MESSAGE, max_size=4, unique_by=lambda message: message.id),
    filters=st.lists(FILTER, max_size=6),
    many=st.sampled_from([0, 100]),
)
def test_the_index_of_failed_jobs_finds_what_the_filter_matches(
    messages: list[Message], filters: list[JobFilter], many: int
) -> None:
    with pytest.MonkeyPatch.context() as patched, closing(FailedIndex()) as index:
        patched.setattr(tuning, "FEW", many)
        taking = EntryBuilder(lambda message: message.preview)
        index.put([taking.entry(each) for each in messages], 1)
        for filter in filters:
            matching = {message.id for message in messages if filter.matches(facts_of_failed(message))}
            found = index.page(filter, offset=0, limit=100, newest=True)
            assert {each.message.id for each in found} == matching
            assert index.count(filter) == len(matching)


def facts_of_record(record: dict[str, Any], writer: str) -> Facts:
    return Facts(
        id=record["id"],
        state=entry.STATE_OF[RecordKind(record["kind"])],
        queue=record["queue"],
        job=record["job"],
        error=record.get("error") or "",
        worker=writer,
        at=record["at"],
        took=record["took"],
        texts=lambda: (
            record["job"],
            record.get("error"),
            None if record["kind"] == RecordKind.SUCCEEDED else record.get("message"),
        ),
    )


@pytest.mark.slow
@PROPERTY
@given(
    records=st.lists(RECORD, max_size=5),
    filters=st.lists(FILTER, max_size=6),
    writer=st.sampled_from(["pid:7@mail", "b"]),
)
def test_the_index_of_finished_jobs_finds_what_the_filter_matches(
    records: list[dict[str, Any]], filters: list[JobFilter], writer: str
) -> None:
    with closing(HistoryIndex()) as index:
        index.take(batch(*records, writer=writer))
        for filter in filters:
            ended = JobFilter(state=",".join(FINAL))
            jobs = [facts_of_record(record, writer) for record in reversed(records)]
            matching = [job.id for job in jobs if filter.matches(job) and (filter.state or ended.matches(job))]
            assert [each.id for each in index.page(filter)] == matching
            assert index.count(filter) == len(matching)


@given(FILTER, st.integers(0, 10**9), st.integers(0, 10**6))
def test_the_text_of_a_filter_means_that_filter(filter: JobFilter, at: int, micros: int) -> None:
    exact = replace(filter, since=at, until=at + 0.5, longer=micros / 10**6, shorter=None)

    assert parse_filter(str(exact), NOW) == exact
    assert str(JobFilter()) == "everything"
