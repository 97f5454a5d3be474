"""Test tools for your program: a separate broker for each test, and a worker in the test's process.

pytest finds the fixture `palermo` automatically:

    def test_a_new_user_gets_a_mail(palermo):
        register("ada@example.com")

        palermo.assert_enqueued(send_welcome, "ada@example.com")
        palermo.work()
        assert outbox == ["ada@example.com"]

The fixture is a `Palermo`. In other test frameworks, use it as a context manager. See docs/guides/testing.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palermo.testing.enqueued import EnqueuedJob
    from palermo.testing.failures import JobFailure
    from palermo.testing.movable_clock import MovableClock
    from palermo.testing.palermo import Palermo

__all__ = ["EnqueuedJob", "JobFailure", "MovableClock", "Palermo"]

#: Imported on first use, because pytest imports this package in every test run.
_LAZY = {
    "EnqueuedJob": "palermo.testing.enqueued",
    "JobFailure": "palermo.testing.failures",
    "MovableClock": "palermo.testing.movable_clock",
    "Palermo": "palermo.testing.palermo",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'palermo.testing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return found
