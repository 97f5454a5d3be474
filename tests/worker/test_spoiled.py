"""Jobs that spoil their process: the next one does not find what they left."""

import json

from tests.harness.rig import Rig

MODULE = "crew_spoils"

#: How a job spoils its process, and what the log says of it.
SPOILS = {
    "limit": "limit NOFILE is (3, ",
    "memory": "limit AS is ",
    "folder": "working directory is ",
    "deleted_folder": "working directory is gone, was ",
    "umask": "umask is 0o777, was 0o",
    "mask": "signal mask is {",
    "handler": "handler of signal ",
    "pipe_handler": "handler of SIGPIPE is ",
    "alarm": "alarm is True",
    "output": "standard output is closed",
    "errors": "standard error is (",
}


def _look(rig: Rig) -> str:
    return rig.enqueue("look", str(rig.notes_path))


def test_a_job_finds_its_process_as_the_first_did(rig: Rig) -> None:
    jobs = [*((how, "spoil") for how in SPOILS), ("umask", "spoil_and_fail")]
    _look(rig)
    spoilers = []
    for how, job in jobs:
        spoilers.append(rig.enqueue(job, how))
        _look(rig)

    log = rig.burst()

    before, *after = map(json.loads, rig.lines())
    assert after == [before] * len(jobs)
    replaced = [line for line in log.splitlines() if "slot replaced" in line]
    assert len(replaced) == len(jobs), log
    for line, spoiler, (how, job) in zip(replaced, spoilers, jobs, strict=True):
        assert f"job {MODULE}.{job} {spoiler} changed its process: " in line
        assert SPOILS[how] in line
    assert list(rig.errors()) == spoilers[-1:]


def test_a_job_that_takes_the_workers_connection_away_fails(rig: Rig) -> None:
    spoilers = []
    for how in ("descriptors", "sockets"):
        spoilers.append(rig.enqueue("spoil", how))
        _look(rig)

    rig.burst()

    assert {id: kind for id, (kind, _) in rig.errors().items()} == dict.fromkeys(spoilers, "palermo.errors.JobCrashed")
    assert len(rig.lines()) == 2


def test_a_job_that_puts_back_what_it_changed_keeps_its_process(rig: Rig) -> None:
    for _ in range(3):
        rig.enqueue("borrow", str(rig.notes_path))

    log = rig.burst()

    assert len(set(rig.lines())) == 1
    assert "slot replaced" not in log


def test_a_child_that_slots_share_is_replaced_once_it_is_spoiled(rig: Rig) -> None:
    ways = ("limit", "folder", "errors")
    _look(rig)
    for how in ways:
        rig.enqueue("spoil", how)
        _look(rig)

    log = rig.burst("--pool", "thread")

    before, *after = map(json.loads, rig.lines())
    assert after == [before] * len(ways)
    replaced = [line for line in log.splitlines() if "slot replaced slot=all" in line]
    assert [SPOILS[how] in line for how, line in zip(ways, replaced, strict=True)] == [True] * len(ways), log
