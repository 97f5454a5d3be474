"""Jobs that spoil their process: the next one does not find what they left."""

import json

import pytest

from tests.harness.rig import Rig

MODULE = "crew_spoils"

#: How a job spoils its process, and what the log says of it.
SPOILS = {
    "limit": "limit NOFILE is (3, ",
    "memory": "limit AS is ",
    "folder": "working directory is ",
    "deleted_folder": "working directory is gone, was ",
    "umask": "umask is 0o777, was 0o",
    "mask": "SIGUSR1 is blocked",
    "handler": "is another",
    "pipe_handler": "the handler of SIGPIPE is another",
    "alarm": "an alarm is set",
    "output": "standard output is closed",
    "errors": "standard error is another file",
}


def _look(rig: Rig) -> str:
    return rig.enqueue("look", str(rig.notes_path), module=MODULE)


@pytest.mark.parametrize(("how", "job"), [*((how, "spoil") for how in SPOILS), ("umask", "spoil_and_fail")])
def test_a_job_finds_its_process_as_the_first_did_whatever_the_one_before_it_did_to_it(
    rig: Rig, how: str, job: str
) -> None:
    _look(rig)
    spoiler = rig.enqueue(job, how, module=MODULE)
    _look(rig)

    log = rig.burst(modules=(MODULE,))

    before, after = map(json.loads, rig.lines())
    assert after == before
    replaced = [line for line in log.splitlines() if "slot replaced" in line]
    assert len(replaced) == 1, log
    assert f"job {MODULE}.{job} {spoiler} changed its process: " in replaced[0]
    assert SPOILS[how] in replaced[0]
    assert len(rig.errors()) == (job == "spoil_and_fail")


@pytest.mark.parametrize("how", ["descriptors", "sockets"])
def test_a_job_that_takes_the_workers_connection_away_fails_and_the_next_one_runs(rig: Rig, how: str) -> None:
    spoiler = rig.enqueue("spoil", how, module=MODULE)
    _look(rig)

    rig.burst(modules=(MODULE,))

    assert [kind for kind, _ in rig.errors().values()] == ["palermo.errors.JobCrashed"]
    assert list(rig.errors()) == [spoiler]
    assert len(rig.lines()) == 1


def test_a_job_that_puts_back_what_it_changed_keeps_its_process(rig: Rig) -> None:
    for _ in range(3):
        rig.enqueue("borrow", str(rig.notes_path), module=MODULE)

    log = rig.burst(modules=(MODULE,))

    assert len(set(rig.lines())) == 1
    assert "slot replaced" not in log


@pytest.mark.parametrize("pool", ["thread", "async"])
@pytest.mark.parametrize("how", ["limit", "folder", "errors"])
def test_a_child_that_slots_share_is_replaced_once_a_job_has_spoiled_it(rig: Rig, how: str, pool: str) -> None:
    _look(rig)
    rig.enqueue("spoil_async" if pool == "async" else "spoil", how, module=MODULE)
    _look(rig)

    log = rig.burst("--pool", pool, modules=(MODULE,))

    before, after = map(json.loads, rig.lines())
    assert after == before
    assert [line for line in log.splitlines() if "slots replaced" in line and SPOILS[how] in line], log
