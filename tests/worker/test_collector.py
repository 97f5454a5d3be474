"""The collector of a parent freezes what survives a long collection, and finds garbage among it later."""

import gc
import weakref
from contextlib import ExitStack

import pytest

from palermo.worker.parent import collector
from palermo.worker.parent.collector import Collector


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("long", "visited"), [(-1.0, False), (60.0, True)])
def test_what_survived_a_long_collection_is_not_visited_again(
    long: float, visited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_LONG", long)
    watched, kept = Collector(), Circle()

    with watched.watch():
        gc.collect()
        gone = weakref.ref(kept)
        del kept
        gc.collect()
        assert (gone() is None) is visited

        watched.collect_all()
        assert gone() is None


def test_two_workers_of_a_process_leave_the_collector_as_it_was() -> None:
    before = gc.get_threshold(), len(gc.callbacks)

    with ExitStack() as first, ExitStack() as second:
        first.enter_context(Collector().watch())
        second.enter_context(Collector().watch())
        # Python 3.14.0 to 3.14.4 have no third generation: its threshold is always 0.
        assert gc.get_threshold() == (*before[0][:2], min(1, before[0][2]))
        first.close()

    assert (gc.get_threshold(), len(gc.callbacks)) == before
