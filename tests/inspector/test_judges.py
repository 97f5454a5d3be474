"""What is decided of jobs, one by one or of many that wait at once, and what is told of the problems of a moment."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.versions import other_type
from palermo.client.client import Client
from palermo.contract.broker import Finding
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.core.unique_keys import Mode, UniqueLock, with_lock
from palermo.errors import DuplicateJob, IdInvalid, NotFound, OptionInvalid, QueueNameInvalid, UsageError
from palermo.inspector.doctor import broker_findings
from palermo.inspector.inspector import Inspector
from palermo.inspector.judges import FindJudge, GroupJudge, PageJudge, Selection, TakeJudge, report_taken
from palermo.inspector.problems import Outcomes, PresentProblem, grouped, present
from palermo.inspector.queues import unserved_text
from palermo.inspector.rates import Snapshot
from palermo.settings.settings import Settings
from palermo.views.facts import facts_of_failed
from palermo.views.filter import AuditFilter, JobFilter
from tests.helpers import eventually
from tests.inspector.jobs import message, publish


def failed(
    id: str, *, queue: str = "mail", error: str = "ValueError", at: int = 100, job: str = "shop.send"
) -> Message:
    failure = Failure(exception_class=error, message=f"message of {id}", stack_trace="", failed_at=at)
    return Message(id=id, queue=queue, job=job, failure=failure, retries=1)


def kinds(judge: object, *messages: Message) -> list[type[SweepDecision]]:
    return [type(judge(message)) for message in messages]  # type: ignore[operator]


def test_two_copies_of_one_id_go_together_and_are_one_job() -> None:
    copies = (failed("1"), failed("2"), failed("1"))
    moved = TakeJudge(Selection.of(JobFilter()), lambda message: message)
    removed = TakeJudge(Selection(["1"]))

    assert kinds(moved, *copies) == [Move, Move, Remove]
    assert kinds(removed, *copies) == [Remove, Keep, Remove]
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
    missing = judge.selection.missing_error()
    assert judge.refusal is not None
    assert missing is not None
    assert str(judge.refusal) == "bad. 2 such jobs remain in `failed`."
    assert (judge.refusal.jobs, missing.jobs) == (2, 1)


def test_finding_stops_behind_the_page_if_nobody_wants_the_number() -> None:
    judge, whole = (PageJudge(JobFilter(), offset=0, limit=2, newest=False, count=False) for _ in range(2))

    assert kinds(judge, *(failed(id) for id in "1123")) == [Keep, Keep, Keep, Stop]
    assert ([message.id for message in judge.messages], judge.total) == (["1", "2"], None)
    assert kinds(whole, failed("1"), failed("2")) == [Keep, Keep]
    assert whole.total == 2
    one = FindJudge("2")
    assert kinds(one, failed("1"), failed("2"), failed("3")) == [Keep, Stop, Stop]
    assert one.message is not None


@pytest.mark.parametrize(
    ("offset", "newest", "ids"), [(2, False, "234"), (0, True, "987"), (3, True, "654"), (9, True, "0"), (12, True, "")]
)
def test_finding_keeps_only_the_page(offset: int, newest: bool, ids: str) -> None:
    judge = PageJudge(JobFilter(), offset=offset, limit=3, newest=newest)

    kinds(judge, *(failed(str(n)) for n in range(10)))

    assert [message.id for message in judge.messages] == [*ids]
    assert judge.total == 10


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

    kinds(judge, failed("1"), failed("2"))
    assert told == []
    progress(SweepProgress(total=3, seen=2))
    progress(SweepProgress(total=3, seen=2))
    kinds(judge, failed("3"))
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
def test_a_blank_condition_is_refused_by_every_filter(kind: Any, name: str) -> None:
    for blank in ("", " ", "\t\n"):
        with pytest.raises(OptionInvalid, match=f'"{name}" is blank'):
            kind(**{name: blank})


MAIL = JobFilter(job="shop.mail.*")


def fill(client: Client, number: int = 6) -> None:
    """Jobs of two names in turn."""
    publish(
        client,
        *(
            message(f"j{nth}", f"to-{nth}", queue="mail", job="shop.mail.Send" if nth % 2 else "shop.Resize")
            for nth in range(number)
        ),
    )


def waiting(inspector: Inspector, queue: str = "mail") -> list[str]:
    return [row["id"] for row in inspector.jobs.list(queue, limit=5_000).rows]


def test_matching_jobs_are_moved_and_the_rest_keep_their_order(client: Client, inspector: Inspector) -> None:
    fill(client)

    assert inspector.jobs.count("mail", MAIL) == 3
    assert inspector.jobs.count("mail", MAIL, depth=2) == 1
    assert inspector.jobs.count("mail", JobFilter(text="TO-4")) == 1
    moved = inspector.jobs.move("mail", MAIL, "slow")

    assert [(job.id, job.queue) for job in moved] == [("j1", "slow"), ("j3", "slow"), ("j5", "slow")]
    eventually(lambda: waiting(inspector) == ["j0", "j2", "j4"])
    eventually(lambda: waiting(inspector, "slow") == ["j1", "j3", "j5"])
    assert {row["queue"] for row in inspector.jobs.list("slow").rows} == {"slow"}


def test_jobs_are_cancelled_discarded_and_not_moved_to_odd_places(client: Client, inspector: Inspector) -> None:
    fill(client, 4)
    for to in ("mail", "failed", "a*"):
        with pytest.raises(UsageError):
            inspector.jobs.move("mail", MAIL, to)
    with pytest.raises(NotFound):
        inspector.jobs.discard("nowhere", MAIL)

    assert [job.id for job in inspector.jobs.cancel_waiting("mail", MAIL)] == ["j1", "j3"]
    states = eventually(lambda: {row["id"]: row["state"] for row in inspector.jobs.list("mail").rows})
    assert states == {"j0": "pending", "j1": "cancelled", "j2": "pending", "j3": "cancelled"}

    with pytest.raises(NotFound, match="no job nobody is waiting there"):
        inspector.jobs.discard("mail", ["j1", "nobody", "j2"])
    eventually(lambda: waiting(inspector) == ["j0", "j3"])


def test_a_move_that_is_stopped_leaves_the_rest_where_it_is(client: Client, inspector: Inspector) -> None:
    fill(client)
    asked = iter([False, False])

    moved = inspector.jobs.move("mail", JobFilter(), "slow", stop=lambda: next(asked, True))

    assert [job.id for job in moved] == ["j0", "j1"]
    eventually(lambda: waiting(inspector) == ["j2", "j3", "j4", "j5"])


def test_a_number_is_found_however_the_body_writes_it(client: Client, inspector: Inspector) -> None:
    bodies = [
        b"[4711]",
        b'["order 4711"]',
        b'["\\u0034711"]',
        b"[4.711e3]",
        b'[{"$palermo": "tuple", "value": [4, 711, "4711"]}]',
        '[{"a": "ä 4711"}]'.encode(),
    ]
    meant = [message(f"meant-{nth}", body=body) for nth, body in enumerate(bodies)]
    publish(client, *meant, message("other", 47, 11), message("more", "order 12"))

    assert [row["id"] for row in inspector.jobs.list("mail", filter=JobFilter(text="4711"))] == [
        each.id for each in meant
    ]
    assert inspector.jobs.list("mail", filter=JobFilter(text="4711")).total == 6
    first = inspector.jobs.list("mail", filter=JobFilter(text="4711"), offset=1, limit=1, depth=3)
    assert ([row["id"] for row in first.rows], first.total, first.unseen) == (["meant-1"], 3, 5)
    assert inspector.jobs.count("mail", JobFilter(text="4711")) == 6


def test_jobs_whose_key_another_job_has_are_neither_edited_nor_moved(client: Client, inspector: Inspector) -> None:
    lock = UniqueLock(key="shop.sync:a", mode=Mode.DONE)
    publish(client, with_lock(message("first", "old", queue="jobs", job="shop.sync"), lock))
    client.enqueue("shop.sync", ["a"], queue="elsewhere", unique="until_done", unique_key="a")

    with pytest.raises(UsageError, match=r"another job has it.* Nothing was changed"):
        inspector.jobs.edit("first", args=["new"], waits_in="jobs")
    with pytest.raises(DuplicateJob, match="remains in queue jobs"):
        inspector.jobs.move("jobs", "first", "slow")

    assert [row["args"] for row in inspector.jobs.list("jobs").rows] == [["old"]]


def queue(name: str = "mail", pending: int = 3, workers: int = 1, *, paused: bool = False) -> dict[str, Any]:
    return {"name": name, "pending": pending, "in_progress": 0, "workers": workers, "paused": paused}


def problems(*queues: dict[str, Any], **more: Any) -> list[PresentProblem]:
    known: dict[str, Any] = {"all_paused": False, "ages": {}, "jobs": {}, **more}
    return present(queues, known.pop("workers", []), **known)


@pytest.mark.parametrize(
    ("clocks", "overdue", "kinds"),
    [
        ([], 5.0, []),
        ([], 6.0, ["overdue"]),
        ([False, False], 6.0, ["overdue"]),
        ([False, True], 6.0, []),
        ([False, None], 6.0, []),
    ],
)
def test_a_due_job_is_a_problem_if_no_worker_moves_it(
    clocks: list[bool | None], overdue: float, kinds: list[str]
) -> None:
    workers = [{**worker("w1", "idle", "mail"), "clock": clock} for clock in clocks]

    assert [each.kind for each in problems(workers=workers, overdue=overdue)] == kinds


@pytest.mark.parametrize(
    ("row", "age", "kinds"),
    [
        (queue(), None, []),
        (queue(pending=0, workers=0), None, []),
        (queue(workers=0), None, ["unserved"]),
        (queue(), 900, []),
        (queue(), 901, ["late"]),
        (queue(workers=0), 901, ["unserved"]),
        (queue(workers=0, paused=True), 901, ["paused"]),
        (queue(pending=0, paused=True), None, []),
        (queue("failed", workers=0), None, []),
        (queue("failed:mail", workers=0), None, []),
    ],
)
def test_a_queue_has_at_most_one_problem(row: dict[str, Any], age: float | None, kinds: list[str]) -> None:
    assert [each.kind for each in problems(row, ages={"mail": age})] == kinds
    # While all queues are paused that alone is said.
    assert [each.kind for each in problems(row, queue("images", workers=0), all_paused=True)] == ["all paused"]


def worker(id: str, state: str, *queues: str, answers: bool = True) -> dict[str, Any]:
    known = {"pid": 1, "jobs": [], "last_seen": None}
    return {"id": id, "state": state, "queues": list(queues), "answers": answers, **known}


@pytest.mark.parametrize(
    ("states", "kinds"),
    [
        (["quiet"], ["resting"]),
        (["paused", "stopping"], ["resting"]),
        (["quiet", "working"], []),
        (["quiet", "idle"], []),
        (["starting"], []),
    ],
)
def test_jobs_wait_in_a_queue_whose_workers_are_all_quiet(states: list[str], kinds: list[str]) -> None:
    workers = [worker(f"w{nth}", state, "ma*", "!mailing") for nth, state in enumerate(states)]
    other = worker("w9", "idle", "images")

    found = problems(queue(workers=len(states)), queue("images"), workers=[*workers, other])

    assert [each.kind for each in found] == kinds


@pytest.mark.parametrize(
    ("outcomes", "kinds"),
    [
        (Outcomes(90, 10, 0), []),
        (Outcomes(90, 11, 0), ["failing"]),
        (Outcomes(0, 9, 0), []),
        (Outcomes(0, 10, 0), ["failing"]),
        (Outcomes(5, 0, 5), []),
        (Outcomes(4, 0, 6), ["retried"]),
        (Outcomes(2, 2, 9), ["failing"]),
    ],
)
def test_a_job_is_judged_by_its_runs_if_there_are_enough(outcomes: Outcomes, kinds: list[str]) -> None:
    assert [each.kind for each in problems(jobs={"shop.send": outcomes})] == kinds


def test_a_finding_names_what_is_wrong_and_the_command_that_helps() -> None:
    name = "a b; rm -rf $HOME"
    quoted = "'a b; rm -rf $HOME'"

    [unserved] = problems(queue(name, pending=1, workers=0))
    [paused] = problems(queue(name, paused=True))
    [resting] = problems(queue(pending=168), workers=[worker("pid:7@a", "quiet", "mail:3", "images:1")])
    [late] = problems(queue(pending=2_000), ages={"mail": 3_600})
    [failing] = problems(jobs={name: Outcomes(60, 40, 0)})

    assert unserved.finding.check == f"queue {name}"
    assert f"`palermo worker MODULE -q {quoted}`" in unserved.finding.advice
    assert f"`palermo resume {quoted}`" in paused.finding.advice
    assert "pid:7@a is quiet" in resting.finding.text
    assert "`palermo control resume WORKER`" in resting.finding.advice
    assert "1 h 0 min" in late.finding.text
    assert "40 of 100 runs" in failing.finding.text
    assert f"`palermo failed groups --job {quoted}`" in failing.finding.advice


def test_many_problems_of_one_kind_are_one_problem() -> None:
    unserved = [queue(f"region-{nth:03}", pending=nth + 1, workers=0) for nth in range(300)]
    late = [queue(f"late-{nth}", pending=1) for nth in range(4)]
    paused = [queue(f"paused-{nth}", pending=2, paused=True) for nth in range(4)]
    ages = {f"late-{nth}": 1_000.0 * (nth + 1) for nth in range(4)}
    jobs = {f"shop.job_{nth}": Outcomes(60, 40, 0) for nth in range(4)} | {"shop.one": Outcomes(1, 0, 99)}

    found = {each.kind: each.finding for each in problems(*unserved, *late, *paused, ages=ages, jobs=jobs)}

    assert (found["unserved"].check, found["unserved"].level) == ("queues", "warning")
    assert found["unserved"].names == tuple(f"region-{nth:03}" for nth in reversed(range(300)))
    for kind, text in {
        "unserved": "45,150 jobs wait in 300 queues",
        "late": "up to 1 h 6 min: late-3, late-2, late-1, late-0",
        "paused": "8 jobs wait in 4 paused queues",
        "failing": "160 of 400 runs of 4 jobs",
    }.items():
        assert text in found[kind].text
    assert "region-295 and 295 more" in found["unserved"].text
    assert (found["retried"].check, found["retried"].names) == ("job shop.one", ("shop.one",))


def test_equal_findings_about_many_queues_are_one_finding() -> None:
    names = ["a b", *(f"q{nth}" for nth in range(9))]
    foreign = [other_type(name, ours="classic", theirs="quorum") for name in names]
    server, own = Finding.ok("server version", "RabbitMQ 4"), Finding.ok("queue failed", "classic and durable")

    first, alike, last = grouped([server, foreign[0], own, *foreign[1:]])

    assert (first, last) == (server, own)
    assert alike.text.startswith("10 alike, a b, q0, q1, q2, q3 and 5 more: ")
    assert alike.advice.startswith("palermo migrate QUEUE --type classic changes it")
    assert (alike.check, alike.level, alike.names) == ("queues", "warning", tuple(names))
    assert grouped([server, own, *foreign[:3]]) == [server, own, *foreign[:3]]
    assert foreign[0].advice.startswith("palermo migrate 'a b' --type classic")


# -- states that another program has changed


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_the_doctor_names_a_state_that_cannot_be_read(
    kind: str, request: pytest.FixtureRequest, exchange: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue("redis_url") if kind == "redis" else f"sqlite:///{tmp_path}/jobs.db"
    unique = UniqueJob(name="shop.unique", options={"unique": "until_done"})
    with Client(Settings(url=url, exchange=exchange)) as client:
        client.run(lambda broker: broker.keys.announce(["shop.unique"], [unique]))
        if kind == "redis":

            async def spoil(broker: Any) -> None:
                await broker._store.call("HSET", broker._store.key("unique-jobs"), "shop.unique", "[1]")

            client.run(spoil)
        else:
            with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
                db.execute("update unique_job set state = '[1]'")

        (found,) = [one.text for one in broker_findings(client) if one.check == "records"]
        assert found == "1 record of unique-jobs cannot be read and is ignored: shop.unique"
        assert client.enqueue("shop.unique").enqueued


# -- whether a worker serves a queue


def snapshot(*workers: dict[str, Any], **served: int) -> Snapshot:
    """A moment with these workers, and with so many workers on each queue."""
    return Snapshot(at=0.0, queues=[{"name": name, "workers": n} for name, n in served.items()], workers=[*workers])


def serving(*queues: str, answers: bool = True) -> dict[str, Any]:
    return {"queues": [*queues], "answers": answers}


@pytest.mark.parametrize(
    "found",
    [
        snapshot(),
        snapshot(legacy=0),
        snapshot(serving("mail")),
        snapshot(serving("*", "!legacy")),
        snapshot(serving("*", answers=False)),
        snapshot(serving("")),
    ],
)
def test_a_queue_without_a_worker_that_answers_is_not_served(found: Snapshot) -> None:
    assert unserved_text(found, "legacy") == "no worker serves queue 'legacy'."


def test_a_queue_is_served_before_it_exists_and_a_mistyped_one_answered() -> None:
    for found in (snapshot(legacy=1), snapshot(serving("legacy")), snapshot(serving("leg*", "mail"))):
        assert unserved_text(found, "legacy") == ""
    mistyped = snapshot(legacy=1, legcy=0)
    assert unserved_text(mistyped, "legcy") == "no worker serves queue 'legcy'. Did you mean 'legacy'?"
