"""The queues that `-q` means, in Resque's order."""

import random
from collections import Counter
from itertools import repeat

import pytest

from palermo.core.queue_selection import PausedQueues, QueueRank, QueueSelection, draw_order
from palermo.errors import QueueNameInvalid

KNOWN = ["low", "file_b", "high", "failed", "failed:low", "file_a", "critical"]


@pytest.mark.parametrize(
    ("written", "served"),
    [
        ("high,low", ["high", "low"]),
        ("low,high", ["low", "high"]),
        ("unknown,high", ["unknown", "high"]),
        ("*", ["critical", "file_a", "file_b", "high", "low"]),
        ("critical,*", ["critical", "file_a", "file_b", "high", "low"]),
        ("*,critical", ["file_a", "file_b", "high", "low", "critical"]),
        ("file_*", ["file_a", "file_b"]),
        ("file_?,high", ["file_a", "file_b", "high"]),
        ("*,!low", ["critical", "file_a", "file_b", "high"]),
        ("!low", ["critical", "file_a", "file_b", "high"]),
        ("!file_*", ["critical", "high", "low"]),
        ("*,!file_*,!low", ["critical", "high"]),
        ("!failed", ["critical", "file_a", "file_b", "high", "low"]),
        ("f*", ["file_a", "file_b"]),
        (" high , low ", ["high", "low"]),
    ],
)
def test_a_queue_list_means_these_queues_in_this_order(written: str, served: list[str]) -> None:
    assert list(QueueSelection.parse(written).select(KNOWN)) == served


@pytest.mark.parametrize(
    "written",
    [
        *("", ",", "high,", "failed", "high,failed", "failed:low", "amq.x", "~x", "x" * 128, "a\udc80"),
        *("high:0", "high:1001", "!low:2", "failed:5", "high:99999999999999999999"),
    ],
)
def test_a_queue_list_with_a_name_or_weight_that_cannot_be_is_refused(written: str) -> None:
    with pytest.raises(QueueNameInvalid):
        QueueSelection.parse(written)


@pytest.mark.parametrize(
    ("written", "places"),
    [
        ("high:5,low:1", {"high": (0, 5), "low": (0, 1)}),
        (
            "critical,high:5,low:1,*",
            {"critical": (0, 1), "high": (1, 5), "low": (1, 1), "file_a": (2, 1), "file_b": (3, 1)},
        ),
        ("file_*:3,low:1,!file_b", {"file_a": (0, 3), "low": (0, 1)}),
        ("high:2,critical,low:2", {"high": (0, 2), "critical": (1, 1), "low": (2, 2)}),
        ("mail:5:1,low", {"mail:5": (0, 1), "low": (1, 1)}),
        ("low:2,*:1,!file_*", {"low": (0, 2), "critical": (0, 1), "high": (0, 1)}),
    ],
)
def test_neighbours_with_weights_share_one_place(written: str, places: dict[str, tuple[int, int]]) -> None:
    found = QueueSelection.parse(written).places(KNOWN)

    levels = sorted({place.level for place in found.values()})
    assert {name: (levels.index(place.level), place.weight) for name, place in found.items()} == places
    assert QueueSelection.parse(QueueSelection.parse(written).written).places(KNOWN) == found


def test_a_selection_is_fixed_by_whole_names_and_strict_without_weights() -> None:
    for written, fixed in (("a", True), ("a,b", True), ("*", False), ("a,!b", False), ("f_?", False)):
        assert QueueSelection.parse(written).fixed is fixed
    assert QueueSelection.parse("high,low").shared is False
    assert QueueSelection(("mail:5", "low")).select(()) == ("mail:5", "low")
    assert str(QueueSelection(("mail:5", "low"))) == "mail:5:1,low"


def test_queues_are_drawn_in_proportion_to_their_weights() -> None:
    places = QueueSelection.parse("urgent,high:5,middle:3,low:2").places(())
    chance = random.Random(4).random

    looks = [draw_order(places, chance) for _ in repeat(None, 20_000)]

    assert {look[0] for look in looks} == {"urgent"}
    first = Counter(look[1] for look in looks)
    # 5 : 3 : 2 of 20,000, and three standard deviations of the largest, sqrt(20000 * 0.5 * 0.5) = 71.
    assert [first[name] for name in ("high", "middle", "low")] == pytest.approx([10_000, 6_000, 4_000], abs=213)
    then = Counter(look[2] for look in looks if look[1] == "high")
    # Where high is empty the other two keep 3 : 2.
    assert then["middle"] / then["low"] == pytest.approx(3 / 2, rel=0.07)
    # Any chance draws every queue once.
    for luck in (0.0, 0.5, 1.0 - 2**-53):
        order = draw_order({"a": QueueRank(1, 1), "b": QueueRank(1, 1_000), "c": QueueRank(0)}, lambda luck=luck: luck)  # type: ignore[misc]
        assert (sorted(order), order[0]) == (["a", "b", "c"], "c")


def test_a_pause_of_all_queues_leaves_the_failed_ones_open() -> None:
    every, one = PausedQueues(every=True), PausedQueues(names=frozenset({"failed"}))

    assert ["mail" in every, "failed" in every, "failed:mail" in every] == [True, False, False]
    assert ["failed" in one, "mail" in one] == [True, False]
