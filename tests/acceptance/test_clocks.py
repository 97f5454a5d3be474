"""A clock that jumps, and a broker that is away when jobs come due: nothing early, nothing lost, the rest at once."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, url_of
from tests.scale import RESTARTS

HOUR = 3_600.0


class WallClock:
    """The clock of a worker's machine, which a test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path / "clock"
        self.set(0)

    def set(self, wrong_by: float) -> None:
        """Have it go wrong by so many seconds from now on."""
        new = self.path.with_suffix(".new")
        new.write_text(str(wrong_by))
        os.replace(new, self.path)


@pytest.fixture
def clock(tmp_path: Path, rig: Rig) -> WallClock:
    """That of a worker which waits for jobs."""
    clock = WallClock(tmp_path)
    rig.ready(rig.worker(program="misled.py", CLOCK=str(clock.path)))
    return clock


def enqueue(rig: Rig, text: str, delay: float) -> None:
    rig.client.enqueue("shop.note", (text,), {}, delay=delay)


def test_what_is_due_by_a_clock_that_jumped_forward_comes_at_once(rig: Rig, clock: WallClock) -> None:
    enqueue(rig, "in an hour", HOUR)
    enqueue(rig, "in two days", 48 * HOUR)
    rig.enqueue("note", "now")
    rig.await_lines(1)

    clock.set(HOUR + 1)

    assert rig.await_lines(2) == ["now", "in an hour"]
    eventually(lambda: rig.inspector.scheduled().total == 1)


def test_a_clock_that_jumped_back_makes_nothing_early(rig: Rig, clock: WallClock) -> None:
    # Long enough for the clock to be set in time.
    enqueue(rig, "soon", 6)
    due = time.time() + 6
    clock.set(-HOUR)

    eventually(lambda: time.time() > due + 1)
    rig.enqueue("note", "now")

    assert rig.await_lines(1) == ["now"]
    eventually(lambda: [row["args"] for row in rig.inspector.scheduled()] == [["soon"]])
    clock.set(0)
    assert rig.await_lines(2) == ["now", "soon"]


@pytest.mark.parametrize("how", RESTARTS)
def test_what_came_due_while_the_broker_was_away_comes_once_it_is_back(away: Rig, module_node: Node, how: str) -> None:
    worker = away.worker()
    away.ready(worker)
    enqueue(away, "in an hour", HOUR)
    for number in range(50):
        enqueue(away, f"{number}", 1 + number / 25)
    due = time.time() + 3

    if how == "in good order":
        module_node.stop()
    else:
        module_node.kill9()
    eventually(lambda: time.time() > due)
    module_node.start()

    eventually(lambda: set(away.lines()) >= {f"{number}" for number in range(50)})
    assert worker.alive

    def later() -> set[str]:
        return {row["args"][0] for row in away.inspector.scheduled()}

    # Its queue may be the last one to be there again. The job may be there twice: the leader had just moved it, and a
    # RabbitMQ that is killed forgets the last acknowledgements.
    eventually(lambda: later() == {"in an hour"})


@pytest.fixture
def away(module_node: Node, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    """On a broker that the test may harm."""
    with Rig(tmp_path, url_of(module_node), exchange, module="shop") as rig:
        yield rig
