"""Promises of Resque for jobs that go wrong, and of hooks: R4, R7, R8."""

import signal

import pytest

from palermo.jobs.hooks import HOOKS
from tests.acceptance.place import Place
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
    place: Place, job: str, args: tuple[object, ...], told: str
) -> None:
    worker = place.worker("-q", "jobs,mail")
    dying = place.enqueue(job, *args)
    place.enqueue("note", "after")

    assert place.await_lines(1) == ["after"]

    (row,) = place.failed().values()
    assert (row["id"], row["error"]["class"]) == (dying, "palermo.errors.JobCrashed")
    assert told in row["error"]["message"]
    assert worker.alive
    eventually(lambda: [each["failed"] for each in place.workers()] == [1])


def test_R4_a_job_leaves_nothing_behind_in_the_worker(sqlite_place: Place) -> None:
    worker = sqlite_place.worker()
    sqlite_place.enqueue("leak", "pids")
    (line,) = sqlite_place.await_lines(1, "pids")
    pid, found = line.split()

    assert found == "0"
    assert int(pid) != worker.pid
    assert int(pid) in worker.tree()


def test_R7_every_hook_runs_in_its_place(place: Place) -> None:
    hooked = {row.name for row in HOOKS}
    worker = place.worker(modules=("hooked",))
    program = (
        "import hooked; print(bool(hooked.Work.enqueue('ok')), bool(hooked.Work.enqueue('veto')),"
        " bool(hooked.Work.enqueue('skip')), bool(hooked.Work.enqueue('fail')))"
    )
    assert place.python(program).split() == ["True", "False", "True", "True"]
    eventually(lambda: place.failed())
    eventually(lambda: {"queue_empty", "queue_size"} <= names(place))
    worker.send(signal.SIGUSR2)
    eventually(lambda: "before_pause" in names(place))
    # A job that comes while it stops taking jobs is given back: only then can it be dequeued.
    gone = "print(any(hooked.Work.dequeue('away') or time.sleep(0.05) for _ in range(1_000)))"
    away = place.python(f"import hooked, time; hooked.Work.enqueue('away'); {gone}")
    assert away.strip() == "True"
    worker.send(signal.SIGCONT)
    eventually(lambda: "after_pause" in names(place))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0

    lines = place.lines("trace")
    assert names(place) == hooked
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
    assert [row["args"] for row in place.failed().values()] == [["fail"]]
    assert place.pending() == 0
    ends = [line.split()[0] for line in lines if line != "queue_size"]
    assert ends[-2:] == ["shutdown", "worker_exit"]
    assert lines.index("before_first_fork") < lines.index("before_fork") < lines.index("after_fork")


def names(place: Place) -> set[str]:
    return {line.split()[0] for line in place.lines("trace")} - {"process"}


def test_R8_failed_jobs_are_requeued_to_another_queue_and_by_class(place: Place) -> None:
    mail = [place.enqueue("Send", "nobody", queue="mail") for _ in range(2)]
    jobs = [place.enqueue("fail", f"{number}") for number in range(3)]
    place.burst("-q", "mail,jobs")

    place.palermo("failed", "requeue", "--all", "--job", "shop.Send", "--to-queue", "slow", "--yes")
    assert list(place.failed()) == jobs
    assert [row["id"] for row in place.inspector.jobs("slow")] == mail
    place.palermo("failed", "requeue", jobs[1], "--args", '["mended"]', "--to-queue", "slow", "--yes")
    assert place.inspector.jobs("slow").rows[-1]["args"] == ["mended"]
    place.palermo("failed", "discard", "--all", "--error", "ValueError", "--yes")

    assert place.failed() == {}
    place.burst("-q", "slow")
    assert {row["queue"] for row in place.failed().values()} == {"slow"}


def test_R8_what_was_requeued_is_gone_from_failed_and_all_can_be_cleared(place: Place) -> None:
    first, *rest = [place.enqueue("fail", f"{number}") for number in range(4)]
    place.burst()

    place.palermo("failed", "requeue", first)
    assert list(place.failed()) == rest
    place.palermo("failed", "discard", "--all", "--yes")
    assert place.failed() == {}
    assert [row["id"] for row in place.inspector.jobs("jobs")] == [first]


def test_R8_several_failure_back_ends_are_told_besides_the_queue(place: Place) -> None:
    ids = {place.enqueue("fail", "x"), place.enqueue("segfault")}

    log = place.burst(modules=("shop", "backends"))

    assert set(place.failed()) == ids
    for file in ("tracker", "pager"):
        assert {line.split()[0] for line in place.lines(file)} == ids
    assert log.count("the tracker is down") >= 1, "what a back end raises is in the log, and loses nothing"
    assert "ValueError: x" in log


def test_R8_failed_is_kept_within_the_age_and_number_that_the_settings_say(place: Place) -> None:
    ids = [place.enqueue("fail", f"{number}") for number in range(5)]
    place.burst()
    assert list(place.failed()) == ids

    place.burst(PALERMO_FAILED_MAX_COUNT="2")

    assert list(place.failed()) == ids[3:]
    assert place.inspector.trim_failed(max_age=3_600) == 0


def test_R8_every_queue_may_have_failed_jobs_of_its_own_and_commands_see_all_of_them(place: Place) -> None:
    together = place.enqueue("fail", "together")
    place.burst("-q", "*")
    mail, jobs = place.enqueue("Send", "nobody", queue="mail"), place.enqueue("fail", "x")

    place.burst("-q", "*", PALERMO_FAILED_PER_QUEUE="true")

    assert {row["name"]: row["pending"] for row in place.inspector.queues()} == {
        "failed": 1, "failed:jobs": 1, "failed:mail": 1, "jobs": 0, "mail": 0,
    }  # fmt: skip
    # After one look RabbitMQ may count a job less for an instant.
    eventually(lambda: set(place.failed()) == {together, mail, jobs})
    eventually(lambda: [row["id"] for row in place.inspector.failed(offset=1, limit=1)] == [jobs])
    eventually(lambda: place.failed().get(mail, {}).get("queue") == "mail")
    place.palermo("failed", "requeue", mail)
    assert [row["id"] for row in place.inspector.jobs("mail")] == [mail]
    place.palermo("failed", "discard", "--all", "--yes")
    assert place.failed() == {}


def test_R8_what_was_retried_and_has_failed_again_is_cleared(place: Place) -> None:
    again, fresh = place.enqueue("fail", "again"), place.enqueue("fail", "fresh")
    place.burst()
    place.palermo("failed", "requeue", again)
    place.burst()

    assert [row["id"] for row in place.rows("failed", "list", "--requeued")] == [again]
    assert place.palermo("failed", "discard", "--all", "--requeued", "-y") == "discarded 1 job.\n"
    assert list(place.failed()) == [fresh]


def test_R12_scheduled_jobs_with_the_same_arguments_are_cancelled_and_dequeue_says_that_they_are_there(
    place: Place,
) -> None:
    ids = [place.client.enqueue("shop.note", [text], delay=3600).id for text in ("a", "b", "a")]
    same = ("--args", '["a"]')

    done = place.run("dequeue", "shop.note", *same, "-y")
    place.palermo("scheduled", "cancel", "--all", "--job", "shop.note", *same, "-y")

    assert (done.returncode, "2 such jobs scheduled" in done.stderr) == (4, True)
    assert [row["id"] for row in place.inspector.scheduled() if row["state"] == "scheduled"] == [ids[1]]
