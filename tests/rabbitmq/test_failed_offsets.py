"""The failed jobs that there are, by the records of the log, in whatever order they were written."""

from palermo.brokers.rabbitmq.browsing.failed_log import FailedOffsets, failure_key, split_key

A, B = failure_key("a", 1), failure_key("b", 1)


def ledger(*records: tuple[str, str, int]) -> FailedOffsets:
    found = FailedOffsets()
    for what, name, offset in records:
        if what == "put":
            found.put("failed", name, offset)
        else:
            found.gone("failed", name)
    return found


def offsets(ledger: FailedOffsets, queue: str = "failed") -> list[int]:
    return [offset for offset, _ in ledger.places(queue)]


def test_what_was_put_is_there_in_the_order_of_the_log() -> None:
    assert ledger(("put", A, 3), ("put", B, 1)).places("failed") == [(1, B), (3, A)]
    assert offsets(ledger(("put", A, 3)), "failed:mail") == []


def test_of_several_copies_the_first_goes_first() -> None:
    assert offsets(ledger(("put", A, 1), ("put", A, 2), ("gone", A, 0))) == [2]
    assert offsets(ledger(("put", A, 1), ("put", A, 2), ("gone", A, 0), ("gone", A, 0))) == []


def test_what_goes_before_it_comes_is_not_there() -> None:
    assert offsets(ledger(("gone", A, 0), ("put", A, 1))) == []
    assert offsets(ledger(("gone", A, 0), ("gone", A, 0), ("put", A, 1), ("put", A, 2), ("put", A, 3))) == [3]


def test_another_failure_of_the_same_job_is_another() -> None:
    assert offsets(ledger(("gone", failure_key("a", 2), 0), ("put", A, 1))) == [1]


def test_an_emptied_queue_owes_nothing() -> None:
    found = ledger(("put", A, 1), ("gone", B, 0))
    found.emptied("failed")
    found.put("failed", B, 2)
    assert offsets(found) == [2]


def test_copies_are_counted_by_a_key_that_can_be_read_back() -> None:
    assert ledger(("put", A, 1), ("put", A, 2), ("put", B, 3)).copies("failed") == {A: 2, B: 1}
    assert split_key(failure_key("with blanks", 7)) == ("with blanks", 7)


def test_what_the_log_forgot_is_forgotten() -> None:
    found = ledger(("put", A, 1), ("put", A, 4), ("put", B, 2))
    found.lost("failed", {1, 2})
    assert offsets(found) == [4]
