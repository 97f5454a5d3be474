"""Tests of the soak's own checks: they find what is wrong, and accept only valid reasons."""

from collections import Counter
from typing import Any

import pytest

from soak.books import Keys, Messages, Ticks
from soak.ledger import TAKEN, Ledger
from soak.reasons import Reasons, lost_lines
from soak.records import Answer, Fault, Order, Sent, runs
from soak.traffic import PUBLISH

RAISES, GOOD = True, False


def order(number: int, *, raises: bool = GOOD, id: str | None = None) -> Order:
    return Order(number=number, id=f"id-{number}" if id is None else id, raises=raises, began=0.0, ended=0.1)


def ran(number: int, *, by: int, began: float, ended: float | None = None) -> list[str]:
    who = f"{number} id-{number} pid:{by}@here/worker-1 {by + 2} {by + 1}"
    return [f"begins {who} {began}", *([] if ended is None else [f"ends {who} {ended}"])]


def row(number: int, error: str, message: str = "", *, by: int = 100) -> dict[str, Any]:
    return {
        "id": f"id-{number}",
        "args": [number],
        "worker": f"pid:{by}@here/worker-1",
        "error": {"class": error, "message": message},
    }


def audit(
    orders: list[Order],
    lines: list[str],
    *faults: Fault,
    failed: tuple[dict[str, Any], ...] = (),
    log: str = "",
) -> Ledger:
    return Ledger(
        orders=orders,
        runs=runs(lines),
        failed=failed,
        reasons=Reasons(faults, {100: "first", 200: "second"}, {100: log, 200: ""}),
    )


def kinds(ledger: Ledger) -> list[str]:
    return [wrong.partition(":")[0] for wrong in ledger.wrongs]


def test_a_job_that_ran_and_one_in_failed_are_in_order() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(2, by=100, began=2, ended=3)

    assert audit([order(1), order(2, raises=RAISES)], lines, failed=(row(2, "ArithmeticError"),)).wrongs == []


def test_a_confirmed_job_that_neither_ended_nor_failed_is_lost() -> None:
    assert kinds(audit([order(1), order(2)], ran(2, by=100, began=1))) == ["lost", "lost"]


def test_a_job_that_was_not_confirmed_may_be_lost() -> None:
    assert audit([order(1, id="")], []).wrongs == []


def test_a_job_that_raised_must_be_in_failed_and_a_good_one_must_not() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(2, by=100, began=2, ended=3)

    wrong = kinds(audit([order(1, raises=RAISES), order(2)], lines, failed=(row(2, "ArithmeticError"),)))

    assert wrong == ["raised, and is not in failed", "failed although it does not raise"]


def test_a_second_run_needs_a_reason() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=9, ended=9.5)
    killed = Fault(kind="parent", at=1.5, until=1.6, parent=100)
    another = Fault(kind="parent", at=1.5, until=1.6, parent=200)
    cut = Fault(kind="cut", at=2.1, until=2.1, links=frozenset({"first"}))
    later = Fault(kind="cut", at=8.0, until=8.0, links=frozenset({"first"}))
    elsewhere = Fault(kind="cut", at=2.1, until=2.1, links=frozenset({"second"}))

    assert [audit([order(1)], lines, fault).wrongs for fault in (killed, cut)] == [[], []]
    for fault in (another, later, elsewhere):
        assert kinds(audit([order(1)], lines, fault)) == ["ran again for no reason"]


def test_a_result_that_the_log_calls_dropped_is_a_reason() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=9, ended=9.5)
    dropped = "WARNING result dropped, because the broker has requeued the job id=id-1 job=work"

    ledger = audit([order(1)], lines, log=dropped)

    assert (ledger.wrongs, dict(ledger.duplicates)) == ([], {"result dropped, as the log says": 1})


def test_a_result_of_the_second_run_that_the_log_calls_dropped_is_a_reason() -> None:
    lines = ran(1, by=200, began=1, ended=2) + ran(1, by=100, began=2.1, ended=2.5)
    log = "2026-11-20T14:24:02.910Z WARNING result dropped, because the broker id=id-1 job=soaked.work"

    assert kinds(audit([order(1)], lines)) == ["ran again for no reason"]
    assert audit([order(1)], lines, log=log).wrongs == []


def test_a_late_lost_acknowledgement_needs_an_alarm() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=60, ended=61)
    cut = Fault(kind="broker killed", at=50, until=55, links=frozenset({"first", "second"}))
    alarm = Fault(kind="alarm", at=0.5, until=49)
    earlier = Fault(kind="alarm", at=0.5, until=40)

    assert kinds(audit([order(1)], lines, cut)) == ["ran again for no reason"]
    assert kinds(audit([order(1)], lines, cut, earlier)) == ["ran again for no reason"]
    assert audit([order(1)], lines, cut, alarm).wrongs == []


def test_a_worker_that_lost_its_line_may_try_again_beside_the_next_worker() -> None:
    lines = ran(1, by=200, began=1, ended=5) + ran(1, by=100, began=2)
    stall = Fault(kind="stall", at=0.5, until=1.5, links=frozenset({"first"}))
    log = "process died while running 2 jobs, this one runs again alone id=id-1 job=soaked.work\n"

    assert kinds(audit([order(1)], lines, stall)) == ["ran again for no reason"]
    assert kinds(audit([order(1)], lines, log=log)) == ["ran again for no reason"]
    assert audit([order(1)], lines, stall, log=log).wrongs == []


def test_a_worker_behind_a_silent_line_may_run_a_redelivered_job() -> None:
    lines = ran(1, by=200, began=1, ended=1.5) + ran(1, by=100, began=2, ended=2.1)
    before = Fault(kind="stall", at=0.5, until=2.5, links=frozenset({"first"}))
    since = Fault(kind="stall", at=1.2, until=2.5, links=frozenset({"first"}))

    assert audit([order(1)], lines, before).wrongs == []
    assert kinds(audit([order(1)], lines, since)) == ["ran again for no reason"]


def test_a_line_that_a_worker_says_it_has_lost_is_a_reason() -> None:
    log = "1970-01-01T00:01:42.100Z WARNING connection lost broker='RabbitMQ' error='silent'\n"
    faults = lost_lines({100: "first"}, {100: log}, monotonic=100.0)
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=9, ended=9.5)

    assert [fault.until for fault in faults] == [pytest.approx(2.1)]
    assert audit([order(1)], lines, *faults).wrongs == []


def test_a_job_whose_enqueue_took_half_its_time_may_be_there_twice() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=9, ended=9.5)
    slow = Order(number=1, id="id-1", raises=GOOD, began=0.0, ended=PUBLISH / 2)

    assert audit([slow], lines).wrongs == []


def test_a_crash_needs_a_kill_of_that_process() -> None:
    failed = (row(1, "palermo.errors.JobCrashed"),)
    killed = Fault(kind="child", at=1.5, until=1.5, parent=100, process=102)
    another = Fault(kind="child", at=1.5, until=1.5, parent=100, process=109)
    with_all = Fault(kind="template", at=1.5, until=1.5, parent=100, process=101)

    for fault in (killed, with_all):
        assert audit([order(1)], ran(1, by=100, began=1), fault, failed=failed).wrongs == []
    assert kinds(audit([order(1)], ran(1, by=100, began=1), another, failed=failed)) == [
        "crashed although nobody killed its process"
    ]


def test_the_crash_of_a_job_may_be_settled_on_a_line_that_is_lost() -> None:
    lines = ran(1, by=100, began=1) + ran(1, by=200, began=9, ended=9.5)
    killed = Fault(kind="child", at=1.5, until=1.5, parent=100, process=102)
    cut = Fault(kind="cut", at=2.1, until=2.1, links=frozenset({"first"}))
    later = Fault(kind="cut", at=8.0, until=8.0, links=frozenset({"first"}))

    assert audit([order(1)], lines, killed, cut).wrongs == []
    for faults in ((killed, later), (cut,)):
        assert kinds(audit([order(1)], lines, *faults)) == ["ran again for no reason"]


def test_a_job_fails_for_three_killed_workers_only() -> None:
    failed = (row(1, "palermo.errors.WorkerDied", "3 workers died: pid:5@here, pid:6@here, pid:7@here."),)
    kills = [Fault(kind="parent", at=1, until=1, parent=pid) for pid in (5, 6, 7)]

    assert audit([order(1)], [], *kills, failed=failed).wrongs == []
    assert kinds(audit([order(1)], [], *kills[:2], failed=failed)) == ["given up for workers that nobody killed"]


def test_only_jobs_in_a_queue_at_its_deletion_are_no_loss() -> None:
    remade = Fault(kind="queue remade", at=1.0, until=1.1, queues=frozenset({"orders"}), jobs=0)
    before, later = (
        Order(number=number, id=f"id-{number}", raises=GOOD, began=began, ended=began + 0.1, queue="orders")
        for number, began in ((1, 0.5), (2, 2.0))
    )

    ledger = audit([before, later], [], remade)

    assert (kinds(ledger), ledger.deleted, ledger.lost) == (["lost"], 1, 1)


def test_a_deleted_queue_excuses_no_more_jobs_than_it_had() -> None:
    remade = Fault(kind="queue remade", at=1.0, until=1.1, queues=frozenset({"orders"}), jobs=2)
    orders = [
        Order(number=number, id=f"id-{number}", raises=GOOD, began=0.5, ended=0.6, queue="orders")
        for number in range(TAKEN + 3)
    ]

    assert kinds(audit(orders, [], remade)) == ["lost"]


def test_a_job_that_was_refused_must_not_run() -> None:
    refused = Order(number=1, id="", raises=GOOD, began=0.0, ended=0.1, refused=True)

    assert kinds(audit([refused], ran(1, by=100, began=1, ended=2))) == ["refused, but ran"]
    assert audit([refused], []).wrongs == []


def test_a_job_that_is_not_run_for_its_key_was_not_confirmed() -> None:
    failed = (row(1, "palermo.errors.DuplicateJob"),)
    unsure, sure = (Order(number=1, id=id, raises=GOOD, began=0.0, ended=0.1, key="key") for id in ("", "id-1"))

    assert audit([unsure], [], failed=failed).wrongs == []
    assert kinds(audit([sure], [], failed=failed)) == ["not run for its key, though it was confirmed"]


def test_a_delayed_job_may_move_twice_if_its_leaders_line_is_lost() -> None:
    delayed = Order(number=1, id="id-1", raises=GOOD, began=0.0, ended=0.1, kind="delayed")
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=20, ended=20.5)
    publishers, worker = (
        Fault(kind="stall", at=8.0, until=12.0, links=frozenset({name})) for name in ("publishers", "second")
    )

    assert audit([delayed], lines, publishers).wrongs == []
    assert kinds(audit([delayed], lines, worker)) == ["ran again for no reason"]


def keyed(number: int) -> Order:
    return Order(number=number, id=f"id-{number}", raises=GOOD, began=0.0, ended=0.1, key="key")


def books(orders: list[Order], lines: list[str], *answers: Answer, fault: Fault | None = None) -> Keys:
    reasons = Reasons([fault] if fault else [], {100: "first", 200: "second"}, {100: "", 200: ""})
    return Keys(orders=orders, answers=answers, runs=runs(lines), failed=(), left=(), reasons=reasons)


def test_two_jobs_with_one_key_at_once_need_a_reason() -> None:
    lines = ran(1, by=100, began=1, ended=3) + ran(2, by=200, began=2, ended=4)
    cut = Fault(kind="cut", at=1.5, until=1.5, links=frozenset({"first"}))

    assert len(books([keyed(1), keyed(2)], lines).wrongs) == 1
    assert books([keyed(1), keyed(2)], lines, fault=cut).wrongs == []


def test_a_key_of_a_job_that_is_nowhere_is_left_behind() -> None:
    told = Answer(key="key", holder="nobody", at=1.0)

    assert [wrong.partition(":")[0] for wrong in books([keyed(1)], [], told).wrongs] == ["key left behind"]


def test_equal_messages_are_counted_and_none_may_be_missing() -> None:
    sent = [Sent(number=1, body=b"[1]", kind="foreign", outcome="confirmed", began=0.0, ended=0.1) for _ in range(3)]
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=100, began=2, ended=3)
    reasons = Reasons([], {100: "first"}, {100: ""})

    found = Messages(sent=sent, runs=runs(lines), failed=Counter(), reasons=reasons)

    assert found.lost == 1
    assert Messages(sent=sent, runs=runs(lines), failed=Counter({1: 1}), reasons=reasons).wrongs == []
    assert len(Messages(sent=sent, runs=runs(lines), failed=Counter({1: 2}), reasons=reasons).wrongs) == 1


def test_a_defect_message_fails_twice_only_after_a_loss() -> None:
    sent = [Sent(number=1, body=b"[1]", kind="no job", outcome="confirmed", began=5.0, ended=5.1)]
    before, after = (Fault(kind="cut", at=at, until=at, links=frozenset({"first"})) for at in (4.0, 6.0))

    def wrongs(*faults: Fault) -> list[str]:
        reasons = Reasons(faults, {100: "first"}, {100: ""})
        return Messages(sent=sent, runs=[], failed=Counter({1: 2}), reasons=reasons).wrongs

    assert wrongs(after) == []
    assert [wrong.partition(":")[0] for wrong in wrongs(before)] == ["too often"]


def test_every_tick_must_come_and_once() -> None:
    lines = ran(1, by=100, began=1, ended=1.1) + ran(3, by=100, began=3, ended=3.1) + ran(3, by=200, began=5, ended=6)
    reasons = Reasons([], {100: "first", 200: "second"}, {100: "", 200: ""})

    ticks = Ticks(runs=runs(lines), failed=(), until=4.0, monotonic=lambda instant: instant, reasons=reasons)

    assert [wrong.partition(":")[0] for wrong in ticks.wrongs] == ["tick lost", "tick fired again for no reason"]
