from typing import Any

import pytest

from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.errors import IdInvalid, OptionInvalid, QueueNameInvalid
from palermo.inspector.judges import FindJudge, GroupJudge, PageJudge, Selection, TakeJudge, report_taken
from palermo.views.facts import facts_of_failed
from palermo.views.filter import AuditFilter, JobFilter


def failed(
    id: str, *, queue: str = "mail", error: str = "ValueError", at: int = 100, job: str = "shop.send"
) -> Message:
    failure = Failure(exception_class=error, message=f"message of {id}", stack_trace="", failed_at=at)
    return Message(id=id, queue=queue, job=job, failure=failure, retries=1)


def taken(judge: TakeJudge, *messages: Message) -> None:
    """Let the judge decide about these messages, and carry out its decisions."""
    for message in messages:
        decision = judge(message)
        assert isinstance(decision, Remove | Move)
        decision.done()


def kinds(judge: object, *messages: Message) -> list[type[SweepDecision]]:
    return [type(judge(message)) for message in messages]  # type: ignore[operator]


def test_two_copies_of_one_id_go_together_and_are_one_job() -> None:
    copies = (failed("1"), failed("2"), failed("1"))
    moved = TakeJudge(Selection.of(JobFilter()), lambda message: message)
    removed = TakeJudge(Selection(["1"]))

    assert kinds(moved, *copies) == [Move, Move, Remove]
    assert kinds(removed, *copies) == [Remove, Keep, Remove]
    assert (moved.taken, removed.taken) == ([], [])
    taken(moved := TakeJudge(Selection.of(JobFilter()), lambda message: message), *copies)
    taken(removed := TakeJudge(Selection(["1"])), copies[0], copies[2])
    assert (len(moved.taken), len(removed.taken)) == (2, 1)
    with pytest.raises(IdInvalid):
        Selection(["1", ""])


def test_jobs_that_stay_do_not_end_the_sweep_and_are_counted() -> None:
    def change(message: Message) -> Message:
        if message.queue == "amq.x":
            raise QueueNameInvalid("bad.")
        return message

    judge = TakeJudge(Selection(["1", "2", "3", "4"]), change)

    assert kinds(judge, failed("1", queue="amq.x"), failed("2", queue="amq.x"), failed("3")) == [Keep, Keep, Move]
    missing = judge.missing_error()
    assert judge.refusal is not None
    assert missing is not None
    assert str(judge.refusal) == "bad. 2 such jobs remain in `failed`."
    assert (judge.refusal.jobs, missing.jobs) == (2, 2)
    assert "3, 4" in str(missing), "the sweep did not find the job 3 when it moved it"


def test_finding_stops_behind_the_page_if_nobody_wants_the_number() -> None:
    judge, whole = (PageJudge(JobFilter(), offset=0, limit=2, newest=False, count=False) for _ in range(2))

    assert kinds(judge, *(failed(id) for id in "1123")) == [Keep, Keep, Keep, Stop]
    assert ([message.id for message in judge.messages], judge.total) == (["1", "2"], None)
    assert kinds(whole, failed("1"), failed("2")) == [Keep, Keep]
    assert whole.total == 2
    one = FindJudge("2")
    assert kinds(one, failed("1"), failed("2"), failed("3")) == [Keep, Stop, Stop]
    assert one.message is not None


def test_failures_of_one_kind_are_one_group() -> None:
    judge = GroupJudge(JobFilter())

    kinds(
        judge,
        failed("1", at=100),
        failed("2", at=300),
        failed("2", at=300),
        failed("3", error="KeyError", at=200),
        failed("4", at=200),
    )

    first, second = judge.rows()
    assert (first["count"], first["error"], first["id"]) == (3, "ValueError", "4")
    assert (first["first_seen"], first["last_seen"]) == ("1970-01-01T00:01:40Z", "1970-01-01T00:05:00Z")
    assert (second["count"], second["error"], second["message"]) == (1, "KeyError", "message of 3")


def test_what_has_gone_is_told_once_the_step_that_took_it_is_reported() -> None:
    judge, told = TakeJudge(Selection.of(JobFilter())), list[list[str]]()
    progress = report_taken(judge.taken, {"on_taken": lambda jobs: told.append([job.id for job in jobs])})

    taken(judge, failed("1"), failed("2"))
    kinds(judge, failed("gone"))
    assert told == []
    progress(SweepProgress(total=3, seen=2))
    progress(SweepProgress(total=3, seen=2))
    taken(judge, failed("3"))
    progress(SweepProgress(total=3, seen=3))

    assert told == [["1", "2"], ["3"]]


# -- filters

FAILED = Message(
    id="7c9e",
    queue="mail",
    job="shop.mail.Send",
    preview="'Ann@b.c'",
    failure=Failure(
        exception_class="smtplib.SMTPException", message="Mailbox Full", stack_trace="in deliver", failed_at=1_000
    ),
)

WAITING = Message(id="1", queue="a[1]", job="a")


@pytest.mark.parametrize(
    ("message", "matching", "others"),
    [
        (FAILED, {}, {}),
        (FAILED, {"queue": "mai"}, {"queue": "=mai"}),
        (FAILED, {"queue": "M*L"}, {"queue": "l*m"}),
        (FAILED, {"job": "send,none"}, {"job": "sent,none"}),
        (FAILED, {"error": "SMTPException"}, {"error": "=SMTPException"}),
        (FAILED, {"error": "smtplib.*"}, {"error": "ValueError"}),
        (FAILED, {"text": "mailbox full"}, {"text": "empty"}),
        (FAILED, {"text": "DELIVER"}, {}),
        (FAILED, {"text": "ann@"}, {}),
        (FAILED, {"text": "7c9e"}, {}),
        (FAILED, {"state": "done,failed"}, {"state": "retrying"}),
        (FAILED, {"since": 1_000.9}, {"since": 1_001}),
        (FAILED, {"queue": "mail", "error": "SMTPException", "text": "full"}, {"queue": "mail", "text": "empty"}),
        (WAITING, {"queue": "=a[1]"}, {"since": 1}),
        (WAITING, {}, {"error": "ValueError"}),
    ],
)
def test_filters_match_by_all_conditions(message: Message, matching: dict[str, Any], others: dict[str, Any]) -> None:
    assert JobFilter(**matching).matches(facts_of_failed(message))
    assert not others or not JobFilter(**others).matches(facts_of_failed(message))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((JobFilter, name) for name in ("queue", "job", "error", "text", "group", "worker", "tenant", "state")),
        *((AuditFilter, name) for name in ("by", "action", "queue", "text")),
    ],
)
def test_a_blank_condition_or_text_with_nul_is_refused(kind: Any, name: str) -> None:
    for wrong in ("", " ", "\t\n", *(["a\0"] if name == "text" else [])):
        with pytest.raises(OptionInvalid, match=f'"{name}" {"contains a NUL" if "a" in wrong else "is blank"}'):
            kind(**{name: wrong})
