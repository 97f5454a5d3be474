"""The problems of a moment, by rows of queues and workers and by how jobs ended."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.versions import other_type
from palermo.client.client import Client
from palermo.contract.broker import Finding
from palermo.contract.unique_jobs import UniqueJob
from palermo.inspector.doctor import broker_findings
from palermo.inspector.problems import Outcomes, PresentProblem, grouped, present
from palermo.inspector.queues import unserved_text
from palermo.inspector.rates import Snapshot
from palermo.settings.settings import Settings


def queue(name: str = "mail", pending: int = 3, workers: int = 1, *, paused: bool = False) -> dict[str, Any]:
    return {"name": name, "pending": pending, "in_progress": 0, "workers": workers, "paused": paused}


def problems(*queues: dict[str, Any], **more: Any) -> list[PresentProblem]:
    known: dict[str, Any] = {"all_paused": False, "ages": {}, "jobs": {}, **more}
    return present(queues, known.pop("workers", []), **known)


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
