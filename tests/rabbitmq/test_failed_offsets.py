"""The failed jobs that there are, by the records of the log, in whatever order they were written."""

import pytest

from palermo.brokers.rabbitmq.browsing.failed_log import FailedOffsets, failure_key, split_key

A, B, A_AGAIN = failure_key("a", 1), failure_key("b", 1), failure_key("a", 2)


def ledger(*records: tuple[str, str, int]) -> FailedOffsets:
    found = FailedOffsets()
    for what, name, offset in records:
        match what:
            case "put":
                found.put("failed", name, offset)
            case "gone":
                found.gone("failed", name)
            case "emptied":
                found.emptied("failed")
            case "lost":
                found.lost("failed", {offset})
    return found


@pytest.mark.parametrize(
    ("records", "left"),
    [
        pytest.param([("put", A, 3), ("put", B, 1)], [1, 3], id="in the order of the log"),
        pytest.param([("put", A, 1), ("put", A, 2), ("gone", A, 0)], [2], id="the first copy goes first"),
        pytest.param([("put", A, 1), ("put", A, 2), ("gone", A, 0), ("gone", A, 0)], [], id="both copies go"),
        pytest.param([("gone", A, 0), ("put", A, 1)], [], id="goes before it comes"),
        pytest.param([("gone", A, 0)] * 2 + [("put", A, n) for n in (1, 2, 3)], [3], id="two go before three come"),
        pytest.param([("gone", A_AGAIN, 0), ("put", A, 1)], [1], id="another failure of the same job"),
        pytest.param([("put", A, 1), ("gone", B, 0), ("emptied", "", 0), ("put", B, 2)], [2], id="emptied"),
        pytest.param([("put", A, 1), ("put", A, 4), ("lost", "", 1)], [4], id="what the log forgot"),
    ],
)
def test_what_is_left_of_the_failed_jobs(records: list[tuple[str, str, int]], left: list[int]) -> None:
    found = ledger(*records)

    assert [offset for offset, _ in found.places("failed")] == left
    assert found.places("failed:mail") == []


def test_copies_are_counted_by_a_key_that_can_be_read_back() -> None:
    assert ledger(("put", A, 1), ("put", A, 2), ("put", B, 3)).copies("failed") == {A: 2, B: 1}
    assert split_key(failure_key("with blanks", 7)) == ("with blanks", 7)
