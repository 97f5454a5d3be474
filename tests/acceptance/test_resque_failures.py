"""Promises of Resque for jobs that go wrong, and of hooks: R4, R7, R8."""

import signal

import pytest

from palermo.jobs.hooks import HOOKS
from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.mark.parametrize(
    ("job", "args", "told"),
    [
        ("segfault", (), "SIGSEGV"),
        ("exit_hard", (3,), "status 3"),
        ("exit_hard", (0,), "status 0"),
        ("run_out_of_memory", (), "SIGKILL"),
    ],
)
def test_R4_a_job_that_dies_is_failed_with_what_killed_it_and_the_worker_goes_on(
    rig: Rig, job: str, args: tuple[object, ...], told: str
) -> None:
    worker = rig.worker("-q", "jobs,mail")
    dying = rig.enqueue(job, *args)
    rig.enqueue("note", "after")

    assert rig.await_lines(1) == ["after"]

    (row,) = rig.failed().values()
    assert (row["id"], row["error"]["class"]) == (dying, "palermo.errors.JobCrashed")
    assert told in row["error"]["message"]
    assert worker.alive
    eventually(lambda: [each["failed"] for each in rig.workers()] == [1])


def test_R4_a_job_leaves_nothing_behind_in_the_worker(sqlite_rig: Rig) -> None:
    worker = sqlite_rig.worker()
    sqlite_rig.enqueue("leak", "pids")
    (line,) = sqlite_rig.await_lines(1, "pids")
    pid, found = line.split()

    assert found == "0"
    assert int(pid) != worker.pid
    assert int(pid) in worker.tree()


def test_R7_every_hook_runs_in_its_place(rig: Rig) -> None:
    hooked = {row.name for row in HOOKS}
    worker = rig.worker(modules=("hooked",))
    program = (
        "import hooked; print(bool(hooked.Work.enqueue('ok')), bool(hooked.Work.enqueue('veto')),"
        " bool(hooked.Work.enqueue('skip')), bool(hooked.Work.enqueue('fail')))"
    )
    assert rig.python(program).split() == ["True", "False", "True", "True"]
    eventually(lambda: rig.failed())
    eventually(lambda: {"queue_empty", "queue_size"} <= names(rig))
    worker.send(signal.SIGUSR2)
    eventually(lambda: "before_pause" in names(rig))
    # A job that comes while it stops taking jobs is given back: only then can it be dequeued.
    gone = "print(any(hooked.Work.dequeue('away') or time.sleep(0.05) for _ in range(1_000)))"
    away = rig.python(f"import hooked, time; hooked.Work.enqueue('away'); {gone}")
    assert away.strip() == "True"
    worker.send(signal.SIGCONT)
    eventually(lambda: "after_pause" in names(rig))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0

    lines = rig.lines("trace")
    assert names(rig) == hooked
    ok = [line.removesuffix(" ok") for line in lines if line.endswith(" ok")]
    # The worker may begin before the enqueuing process has come to its hook.
    assert [what for what in ok if "enqueue" in what] == ["before_enqueue", "after_enqueue"]
    assert [what for what in ok if "process" in what] == [
        "before_process", "around_process in", "process", "around_process out", "after_process"
    ]  # fmt: skip
    assert [line for line in lines if line.endswith(" veto")] == ["before_enqueue veto"]
    assert "process skip" not in lines
    assert "on_success ok" in lines
    assert [line for line in lines if line.startswith(("on_failure", "on_exhausted"))] == [
        *["on_failure fail KeyError"] * 2,
        "on_exhausted fail KeyError",
    ]
    assert [row["args"] for row in rig.failed().values()] == [["fail"]]
    assert rig.pending() == 0
    ends = [line.split()[0] for line in lines if line != "queue_size"]
    assert ends[-2:] == ["shutdown", "worker_exit"]
    assert lines.index("before_first_fork") < lines.index("before_fork") < lines.index("after_fork")


def names(rig: Rig) -> set[str]:
    return {line.split()[0] for line in rig.lines("trace")} - {"process"}


def test_R8_failed_jobs_are_requeued_to_another_queue_and_by_class(rig: Rig) -> None:
    mail = [rig.enqueue("Send", "nobody", queue="mail") for _ in range(2)]
    jobs = [rig.enqueue("fail", f"{number}") for number in range(3)]
    rig.burst("-q", "mail,jobs")

    rig.palermo("failed", "requeue", "--all", "--job", "shop.Send", "--to-queue", "slow", "--yes")
    assert list(rig.failed()) == jobs
    assert [row["id"] for row in rig.inspector.jobs("slow")] == mail
    rig.palermo("failed", "requeue", jobs[1], "--args", '["mended"]', "--to-queue", "slow", "--yes")
    assert rig.inspector.jobs("slow").rows[-1]["args"] == ["mended"]
    rig.palermo("failed", "discard", "--all", "--error", "ValueError", "--yes")

    assert rig.failed() == {}
    rig.burst("-q", "slow")
    assert {row["queue"] for row in rig.failed().values()} == {"slow"}


def test_R8_what_was_requeued_is_gone_from_failed_and_all_can_be_cleared(rig: Rig) -> None:
    first, *rest = [rig.enqueue("fail", f"{number}") for number in range(4)]
    rig.burst()

    rig.palermo("failed", "requeue", first)
    assert list(rig.failed()) == rest
    rig.palermo("failed", "discard", "--all", "--yes")
    assert rig.failed() == {}
    assert [row["id"] for row in rig.inspector.jobs("jobs")] == [first]


def test_R8_several_failure_back_ends_are_told_besides_the_queue(rig: Rig) -> None:
    ids = {rig.enqueue("fail", "x"), rig.enqueue("segfault")}

    log = rig.burst(modules=("shop", "backends"))

    assert set(rig.failed()) == ids
    for file in ("tracker", "pager"):
        assert {line.split()[0] for line in rig.lines(file)} == ids
    assert log.count("the tracker is down") >= 1, "what a back end raises is in the log, and loses nothing"
    assert "ValueError: x" in log


def test_R8_failed_is_kept_within_the_age_and_number_that_the_settings_say(rig: Rig) -> None:
    ids = [rig.enqueue("fail", f"{number}") for number in range(5)]
    rig.burst()
    assert list(rig.failed()) == ids

    rig.burst(PALERMO_FAILED_MAX_COUNT="2")

    assert list(rig.failed()) == ids[3:]
    assert rig.inspector.trim_failed(max_age=3_600) == 0


def test_R8_every_queue_may_have_failed_jobs_of_its_own_and_commands_see_all_of_them(rig: Rig) -> None:
    together = rig.enqueue("fail", "together")
    rig.burst("-q", "*")
    mail, jobs = rig.enqueue("Send", "nobody", queue="mail"), rig.enqueue("fail", "x")

    rig.burst("-q", "*", PALERMO_FAILED_PER_QUEUE="true")

    assert {row["name"]: row["pending"] for row in rig.inspector.queues()} == {
        "failed": 1, "failed:jobs": 1, "failed:mail": 1, "jobs": 0, "mail": 0,
    }  # fmt: skip
    # After one look RabbitMQ may count a job less for an instant.
    eventually(lambda: set(rig.failed()) == {together, mail, jobs})
    eventually(lambda: [row["id"] for row in rig.inspector.failed(offset=1, limit=1)] == [jobs])
    eventually(lambda: rig.failed().get(mail, {}).get("queue") == "mail")
    rig.palermo("failed", "requeue", mail)
    assert [row["id"] for row in rig.inspector.jobs("mail")] == [mail]
    rig.palermo("failed", "discard", "--all", "--yes")
    assert rig.failed() == {}


def test_R8_what_was_retried_and_has_failed_again_is_cleared(rig: Rig) -> None:
    again, fresh = rig.enqueue("fail", "again"), rig.enqueue("fail", "fresh")
    rig.burst()
    rig.palermo("failed", "requeue", again)
    rig.burst()

    assert [row["id"] for row in rig.rows("failed", "list", "--requeued")] == [again]
    assert rig.palermo("failed", "discard", "--all", "--requeued", "-y") == "discarded 1 job.\n"
    assert list(rig.failed()) == [fresh]


def test_R12_scheduled_jobs_with_the_same_arguments_are_cancelled_and_dequeue_says_that_they_are_there(
    rig: Rig,
) -> None:
    ids = [rig.client.enqueue("shop.note", [text], delay=3600).id for text in ("a", "b", "a")]
    same = ("--args", '["a"]')

    done = rig.run("dequeue", "shop.note", *same, "-y")
    rig.palermo("scheduled", "cancel", "--all", "--job", "shop.note", *same, "-y")

    assert (done.returncode, "2 such jobs scheduled" in done.stderr) == (4, True)
    assert [row["id"] for row in rig.inspector.scheduled() if row["state"] == "scheduled"] == [ids[1]]
