"""Promises of Resque about workers (R3 signals, R5 timers of shutting down, R6 and R10 showing them), and K3."""

import signal
from functools import partial

import pytest

from tests.harness.processes import WorkerProcess, title
from tests.harness.rig import Rig
from tests.helpers import eventually


def holding(rig: Rig, *arguments: str) -> WorkerProcess:
    """A worker that runs a job until the gate opens; another waits."""
    rig.enqueue("hold", "held")
    rig.enqueue("note", "next")
    worker = rig.worker(*arguments)
    rig.await_lines(1)
    return worker


def state(rig: Rig) -> str:
    return str(rig.only_worker()["state"])


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_R3_quit_term_and_int_let_the_running_job_finish_take_no_other_and_end(
    rig: Rig, number: signal.Signals
) -> None:
    worker = holding(rig)

    worker.send(number)
    eventually(lambda: state(rig) == "stopping")
    rig.open_gate()

    assert worker.wait() == 0
    assert rig.lines() == ["held begins", "held ends"]
    # A job that comes as the worker stops is given back.
    eventually(lambda: rig.pending() == 1)
    assert rig.failed() == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_R3_with_resques_meanings_term_and_int_kill_at_once_but_no_job_is_lost(
    rig: Rig, number: signal.Signals
) -> None:
    worker = holding(rig, "--resque-signals")

    worker.send(number)

    assert worker.wait() == 1
    assert rig.lines() == ["held begins"]
    assert rig.failed() == {}
    eventually(lambda: rig.pending() == 2)


def test_R3_a_second_int_kills(rig: Rig) -> None:
    worker = holding(rig)

    worker.send(signal.SIGINT)
    eventually(lambda: state(rig) == "stopping")
    worker.send(signal.SIGINT)

    assert worker.wait() == 1
    eventually(lambda: rig.pending() == 2)


def test_R3_usr1_kills_the_running_job_which_fails_and_the_worker_lives_on(rig: Rig) -> None:
    worker = holding(rig)

    worker.send(signal.SIGUSR1)

    assert rig.await_lines(2) == ["held begins", "next"]
    failure = "palermo.errors.JobCrashed: the job's process was killed by the operator (USR1)"
    eventually(lambda: list(map(str, rig.errors().values())) == [failure])
    assert worker.alive


def test_R3_usr2_pauses_while_the_running_job_goes_on_and_cont_resumes(rig: Rig) -> None:
    worker = holding(rig)

    worker.send(signal.SIGUSR2)
    eventually(lambda: state(rig) == "paused")
    rig.open_gate()
    rig.await_lines(2)
    eventually(lambda: title(worker.pid).strip() == "palermo worker: paused")
    eventually(lambda: rig.pending() == 1)
    worker.send(signal.SIGCONT)

    assert rig.await_lines(3) == ["held begins", "held ends", "next"]


def test_R10_a_worker_that_is_stopped_is_told_of_by_every_command(rig: Rig) -> None:
    worker = rig.worker()
    rig.ready(worker)

    def told(command: str) -> str:
        """What the command prints of it, if it looks in time: on Redis such a worker is there for seconds only."""
        worker.send(signal.SIGSTOP)
        # A worker that stopped while it was asked has not answered yet.
        eventually(lambda: [row["answers"] for row in rig.rows("workers")] != [True])
        done = rig.run(command)
        worker.send(signal.SIGCONT)
        eventually(lambda: [row["answers"] for row in rig.rows("workers")] == [True])
        text = done.stdout + done.stderr
        return text if "1 worker does not answer" in text else ""

    assert all(eventually(partial(told, command)) for command in ("check", "doctor"))
    shown = " ".join(eventually(lambda: told("workers")).split())
    # RabbitMQ knows no more of an idle worker than that it is there.
    assert (" ? ? ? " if rig.on_rabbitmq else " 1 0 0 ") in shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_R5_a_job_gets_its_time_then_a_word_then_is_killed_and_none_is_lost(rig: Rig, number: signal.Signals) -> None:
    id = rig.enqueue("ignore_the_end", "stubborn")
    worker = rig.worker("--shutdown-timeout", "0.5")
    rig.await_lines(1)

    worker.send(number)

    assert worker.wait() == 1
    assert rig.lines() == ["stubborn begins", "stubborn was told"]
    log = worker.log
    assert log.index("terminating the running jobs grace=3.0") < log.index("killing the running jobs")
    assert log.index("killing the running jobs") < log.index(f"job interrupted, giving it back id={id}")
    assert rig.failed() == {}
    eventually(lambda: rig.pending() == 1)


def test_R5_quit_waits_however_long_the_job_takes(rig: Rig) -> None:
    worker = holding(rig, "--shutdown-timeout", "0.1")

    worker.send(signal.SIGQUIT)
    eventually(lambda: state(rig) == "stopping")
    rig.open_gate()

    assert worker.wait() == 0
    assert "terminating" not in worker.log


def test_R6_count_workers_in_one_command_each_with_a_job_and_a_title(rig: Rig) -> None:
    for number in range(3):
        rig.enqueue("hold", f"{number}")
    worker = rig.worker("-c", "3", "-q", "jobs", "--pidfile", "worker.pid")

    lines = rig.await_lines(3)
    template, *slots = worker.tree()[1:]

    assert sorted(lines) == [f"{number} begins" for number in range(3)]
    assert (rig.path / "worker.pid").read_text() == f"{worker.pid}\n"
    eventually(lambda: title(worker.pid).strip() == "palermo worker: 3 of 3 slots busy")
    assert title(template).strip() == "palermo template"
    eventually(lambda: all(f"palermo slot {n}: shop.hold" in title(pid) for n, pid in enumerate(slots, start=1)))
    rig.open_gate()
    eventually(lambda: title(worker.pid).strip() == "palermo worker: waiting for jobs")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert not (rig.path / "worker.pid").exists()


def test_R6_a_burst_works_until_nothing_is_left_and_ends(rig: Rig) -> None:
    for number in range(3):
        rig.enqueue("note", f"{number}")

    rig.burst()

    assert sorted(rig.lines()) == ["0", "1", "2"]
    assert rig.pending() == 0


@pytest.mark.parametrize(
    ("level", "said", "unsaid"),
    [("info", "job finished", "nothing"), ("warning", "nothing", "job finished"), ("error", "job failed", "connected")],
)
def test_R6_the_log_says_as_much_as_it_is_asked_to(sqlite_rig: Rig, level: str, said: str, unsaid: str) -> None:
    sqlite_rig.enqueue("note", "x")
    sqlite_rig.enqueue("fail", "nothing works")

    log = sqlite_rig.burst("--log-level", level)

    assert said in log
    assert unsaid.replace("nothing", "no such line") not in log


def test_K3_tstp_quiets_ttin_dumps_and_what_outlasts_the_timeout_is_pushed_back(rig: Rig) -> None:
    worker = holding(rig, "--shutdown-timeout", "0.3")

    worker.send(signal.SIGTSTP)
    eventually(lambda: state(rig) == "quiet")
    worker.send(signal.SIGTTIN)
    eventually(lambda: "stacks of a job" in worker.log and "in hold" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "signal=CONT action=none" in worker.log and "worker stays quiet" in worker.log)
    assert state(rig) == "quiet"
    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert rig.lines() == ["held begins"]
    assert rig.failed() == {}
    eventually(lambda: rig.pending() == 2)


def test_K3_what_was_pushed_back_is_run_by_the_next_worker_in_its_old_place(rig: Rig) -> None:
    worker = holding(rig, "--shutdown-timeout", "0.3")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1

    rig.open_gate()
    rig.burst()

    assert rig.lines() == ["held begins", "held begins", "held ends", "next"]
