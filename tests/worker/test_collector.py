"""The collector of a parent freezes what survives a long collection, and finds garbage among it later."""

import gc
import weakref

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


def test_a_watch_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold(), len(gc.callbacks)

    with Collector().watch():
        assert gc.get_threshold() != before[0]

    assert (gc.get_threshold(), len(gc.callbacks)) == before
