"""Hooks, where a user meets them."""

import signal

from palermo.jobs.hooks import HOOKS
from tests.harness.rig import Rig
from tests.helpers import eventually


def names(rig: Rig) -> set[str]:
    return {line.split()[0] for line in rig.lines("trace")} - {"process"}


def test_every_hook_runs_in_its_place(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    worker = rig.worker(modules=("hooked",))
    enqueued = "print([bool(hooked.Work.enqueue(text)) for text in ('ok', 'veto', 'skip', 'fail')])"
    assert rig.python(f"import hooked; {enqueued}") == "[True, False, True, True]\n"
    eventually(rig.failed)
    eventually(lambda: {"queue_empty", "queue_size"} <= names(rig))
    worker.send(signal.SIGUSR2)
    eventually(lambda: "before_pause" in names(rig))
    # A job that comes while the worker stops taking jobs is given back: only then can it be dequeued.
    gone = "any(hooked.Work.dequeue('away') or time.sleep(0.05) for _ in range(1_000))"
    assert rig.python(f"import hooked, time; hooked.Work.enqueue('away'); print({gone})") == "True\n"
    worker.send(signal.SIGCONT)
    eventually(lambda: "after_pause" in names(rig))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0

    lines = rig.lines("trace")
    assert names(rig) == {row.name for row in HOOKS}
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


def test_a_hook_knows_the_size_of_the_queue_and_sets_the_pace(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    worker = rig.worker("-q", "jobs,bulk", modules=("shop", "paced"))
    rig.await_lines(2, "sizes")  # the worker keeps the pace of the first answer when it asks again

    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(4)])

    eventually(lambda: rig.lines("sizes")[-1] == "jobs 3")
    assert rig.await_lines(1) == ["0"]
    rig.open_gate("hurry")
    rig.await_lines(4)
    eventually(lambda: rig.lines("sizes")[-1] == "jobs 0")
    assert worker.alive
