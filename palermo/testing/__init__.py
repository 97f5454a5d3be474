"""For the tests of your program: a broker of its own for each test, and the worker in the test's process.

pytest finds the fixture `palermo` by itself:

    def test_a_new_user_gets_a_mail(palermo):
        register("ada@example.com")

        palermo.assert_enqueued(send_welcome, "ada@example.com")
        palermo.work()
        assert outbox == ["ada@example.com"]

The fixture is a `Palermo`. Other test frameworks use it as a context manager. docs/guides/testing.md has the guide.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palermo.testing.enqueued import EnqueuedJob
    from palermo.testing.failures import JobFailure
    from palermo.testing.movable_clock import MovableClock
    from palermo.testing.palermo import Palermo

__all__ = ["EnqueuedJob", "JobFailure", "MovableClock", "Palermo"]

#: Imported at first use: pytest imports this package in every test run, also where nobody uses it.
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
