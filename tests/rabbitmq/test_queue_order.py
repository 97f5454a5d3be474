"""The queue that is asked next, and how long a queue that was empty counts as empty."""

import random
from collections import Counter

import pytest

from palermo.brokers.rabbitmq.consuming.queue_order import QueueOrder
from palermo.core.queue_selection import QueueSelection


def ranked(text: str, *, chance: float = 0.0) -> QueueOrder:
    """All of them looked at by 0.0 s, and full."""
    made = QueueOrder(lambda: chance)
    made.serve(QueueSelection.parse(text).places(()))
    made.looked(made.empty, began=0.0, ended=0.0)
    return made


def test_what_is_new_is_looked_at_before_anything_is_asked() -> None:
    made = QueueOrder(random.random)
    assert (made.first(), made.stale(0.0)) == (None, False)

    made.serve(QueueSelection.parse("a,b,c").places(()))

    assert (made.empty, made.first(), made.stale(-1e9)) == (("a", "b", "c"), None, True)
    made.looked({"c"}, began=1.0, ended=1.0)
    assert (made.empty, made.first(), made.stale(1.0)) == (("a", "b"), "c", False)


def test_the_first_that_is_not_known_to_be_empty_is_asked() -> None:
    made = ranked("a,b,c")
    asked = []
    while (queue := made.first()) is not None:
        asked.append(queue)
        made.found_empty(queue, 1.0)
    assert asked == ["a", "b", "c"]

    made.found_full(["b", "no such queue"])
    assert made.first() == "b"
    made.forget()
    assert (made.first(), made.empty) == ("a", ())


def test_queues_no_longer_served_are_forgotten_and_others_stay_empty() -> None:
    made = ranked("a,b,c")
    made.found_empty("a", 1.0)
    made.found_empty("b", 1.0)

    made.serve(QueueSelection.parse("b,c").places(()))
    made.found_empty("a", 1.0)

    assert (made.empty, made.first(), made.stale(1.0)) == (("b",), "c", False)


@pytest.mark.parametrize(
    ("took", "due", "stale"),
    [(0.0, 0.005, 0.01), (0.0002, 0.005, 0.01), (0.002, 0.02, 0.04), (0.01, 0.05, 0.1), (1.0, 0.05, 0.1)],
)  # ten times what it took, at least 5 and at most 50 ms; and twice that
def test_empty_queues_are_looked_at_after_ten_times_what_that_takes(took: float, due: float, stale: float) -> None:
    made = ranked("a,b")
    made.found_empty("a", 1.0)
    made.looked((), began=2.0, ended=2.0 + took)
    made.found_empty("b", 2.0 + took + 0.001)  # what is known longest counts

    def at(seconds: float) -> tuple[bool, bool]:
        return made.due(2.0 + took + seconds), made.stale(2.0 + took + seconds)

    assert at(0.9 * due) == (False, False)
    assert at(1.1 * due) == (True, False)
    assert at(1.1 * stale) == (True, True)


def test_nothing_is_due_where_nothing_is_empty() -> None:
    made = ranked("a,b")
    assert not made.due(1e9)
    assert not made.stale(1e9)


def test_queues_that_tell_of_their_jobs_are_not_looked_at() -> None:
    made = ranked("a,b,c")
    for queue in ("a", "b", "c"):
        made.found_empty(queue, 1.0)
    made.watch(["a", "b"])
    assert (made.empty, made.first(), made.stale(2.0)) == (("c",), None, True)

    made.watch(["c"])
    made.found_full(["b"])
    assert (made.empty, made.first(), made.due(2.0)) == ((), "b", False)

    made.found_empty("b", 2.0)
    made.unwatch(["a", "c"])
    assert (made.empty, made.first(), made.stale(2.0)) == (("a", "c"), None, True)
    made.forget()
    assert (made.empty, made.first()) == ((), "a")


def test_shares_hold_among_those_that_have_jobs() -> None:
    chance = random.Random(7)
    made = QueueOrder(chance.random)
    made.serve(QueueSelection.parse("first,a:5,b:3,c:1,last").places(()))
    made.looked({"a", "b", "c", "last"}, began=0.0, ended=0.0)

    drawn = Counter(made.first() for _ in range(9_000))
    assert {queue: round(count / 1_000) for queue, count in drawn.items()} == {"a": 5, "b": 3, "c": 1}

    made.found_empty("a", 0.0)
    drawn = Counter(made.first() for _ in range(4_000))
    assert {queue: round(count / 1_000) for queue, count in drawn.items()} == {"b": 3, "c": 1}
    for queue in ("b", "c"):
        made.found_empty(queue, 0.0)
    assert made.first() == "last"
