"""The soak's own books: they find what must not be, and excuse only what they should."""

from typing import Any

from tests.chaos.ledger import Harm, Ledger, Order, runs

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
    *harms: Harm,
    failed: tuple[dict[str, Any], ...] = (),
    log: str = "",
) -> Ledger:
    return Ledger(
        orders=orders,
        runs=runs(lines),
        failed=failed,
        harms=harms,
        names={100: "first", 200: "second"},
        logs={100: log, 200: ""},
    )


def kinds(ledger: Ledger) -> list[str]:
    return [wrong.partition(":")[0] for wrong in ledger.wrongs]


def test_a_job_that_ran_and_one_that_raised_and_lies_in_failed_are_in_order() -> None:
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
    killed = Harm(kind="parent", at=1.5, until=1.6, parent=100)
    another = Harm(kind="parent", at=1.5, until=1.6, parent=200)
    cut = Harm(kind="cut", at=2.1, until=2.1, links=frozenset({"first"}))
    later = Harm(kind="cut", at=5.0, until=5.0, links=frozenset({"first"}))
    elsewhere = Harm(kind="cut", at=2.1, until=2.1, links=frozenset({"second"}))

    assert [audit([order(1)], lines, harm).wrongs for harm in (killed, cut)] == [[], []]
    for harm in (another, later, elsewhere):
        assert kinds(audit([order(1)], lines, harm)) == ["ran again for no reason"]


def test_a_result_that_the_log_calls_dropped_is_a_reason() -> None:
    lines = ran(1, by=100, began=1, ended=2) + ran(1, by=200, began=9, ended=9.5)
    dropped = "WARNING result dropped, the broker has given the job back and it may run again id=id-1 job=work"

    ledger = audit([order(1)], lines, log=dropped)

    assert (ledger.wrongs, dict(ledger.duplicates)) == ([], {"result dropped, as the log says": 1})


def test_a_crash_needs_a_kill_of_that_process() -> None:
    failed = (row(1, "palermo.errors.JobCrashed"),)
    killed = Harm(kind="child", at=1.5, until=1.5, parent=100, process=102)
    another = Harm(kind="child", at=1.5, until=1.5, parent=100, process=109)
    with_all = Harm(kind="template", at=1.5, until=1.5, parent=100, process=101)

    for harm in (killed, with_all):
        assert audit([order(1)], ran(1, by=100, began=1), harm, failed=failed).wrongs == []
    assert kinds(audit([order(1)], ran(1, by=100, began=1), another, failed=failed)) == [
        "crashed although nobody killed its process"
    ]


def test_a_job_is_given_up_for_three_workers_that_were_killed_and_no_others() -> None:
    failed = (row(1, "palermo.errors.WorkerDied", "3 workers died: pid:5@here, pid:6@here, pid:7@here."),)
    kills = [Harm(kind="parent", at=1, until=1, parent=pid) for pid in (5, 6, 7)]

    assert audit([order(1)], [], *kills, failed=failed).wrongs == []
    assert kinds(audit([order(1)], [], *kills[:2], failed=failed)) == ["given up for workers that nobody killed"]
