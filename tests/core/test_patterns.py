"""Which queues `-q` means, in Resque's order."""

import pytest

from palermo.core.patterns import QueueSelection
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
    "written", ["", ",", "high,", "failed", "high,failed", "failed:low", "amq.x", "~x", "x" * 128, "a\udc80"]
)
def test_a_queue_list_with_a_name_nobody_serves_is_refused(written: str) -> None:
    with pytest.raises(QueueNameInvalid):
        QueueSelection.parse(written)


@pytest.mark.parametrize(
    ("written", "fixed"), [("a", True), ("a,b", True), ("*", False), ("a,!b", False), ("f_?", False)]
)
def test_only_whole_names_make_a_fixed_selection(written: str, fixed: bool) -> None:
    assert QueueSelection.parse(written).fixed is fixed
