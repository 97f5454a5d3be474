"""The signal table, and how the end of a process is told."""

import signal

import pytest

from palermo.worker.signals import SIGNALS, SURVIVED, Action, describe_status


def test_every_action_has_a_signal_and_every_signal_one_meaning() -> None:
    assert {row.action for row in SIGNALS} == set(Action)
    assert len({row.name for row in SIGNALS}) == len(SIGNALS)
    assert all(row.meaning for row in SIGNALS)


def test_the_children_survive_every_signal_that_would_end_them_by_mistake() -> None:
    harmless = {signal.SIGCONT}

    assert {row.number for row in SIGNALS} - harmless <= set(SURVIVED)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (3, "exited with status 3"),
        (0, "exited with status 0"),
        (-signal.SIGSEGV, "was killed by SIGSEGV (segmentation fault)"),
        (-signal.SIGABRT, "was killed by SIGABRT (aborted)"),
        (-signal.SIGKILL, "was killed by SIGKILL: out of memory, or someone's kill -9"),
        (-250, "was killed by signal 250"),
    ],
)
def test_an_end_is_told_by_signal_or_status(status: int, text: str) -> None:
    assert describe_status(status) == text
