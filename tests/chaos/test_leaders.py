"""The worker that leads is stopped or has a wrong clock: no duty is left undone, and none is done twice."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Self

import pytest

from palermo.client.client import Client
from palermo.errors import LeaderUnavailable
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from soak.records import runs
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.rabbitmq_node import Node, url_of

#: Delayed jobs and jobs of tenants that a leader which dies may have published and not acknowledged yet: of tenants up
#: to three for each slot.
MOVED = 8

#: Seconds by which the clocks of the machines are wrong.
CLOCKS = (40.0, -40.0, 0.0)


class Duties:
    """Jobs for every duty of a leader, a worker that runs them and is not harmed, and workers that do nothing but lead.

    Who runs the jobs keeps its line: else a job may rightly run twice.
    """

    def __init__(self, rig: Rig, node: Node) -> None:
        self.rig = rig
        self.keepers: dict[int, WorkerProcess] = {}
        self.sent = 0
        self.runner = self._worker("--no-scheduler", "-q", "jobs,calls", "-c", "2", PALERMO_URL=url_of(node))

    def _worker(self, *arguments: str, **more: str) -> WorkerProcess:
        return self.rig.worker(*arguments, modules=("soaked", "mixed"), SOAK_RECURS="1", **more)

    def begun(self, *keepers: dict[str, str]) -> Self:
        """With this number of possible leaders, once all of them run and one keeps time."""
        for more in keepers:
            self.keeper(**more)
        self.rig.ready(self.runner, *self.keepers.values())
        eventually(lambda: len(self.rig.lines("ticks")) > 3)
        return self

    def keeper(self, **more: str) -> None:
        worker = self._worker("-q", "idle", **more)
        self.keepers[worker.pid] = worker

    def leader(self, *, after: int = 0) -> int:
        """The pid of the worker that leads, once it is another than this one."""
        found = (0, after)
        return eventually(lambda: pid if (pid := leader(self.rig)) not in found else 0)

    def kill(self, pid: int) -> None:
        self.keepers.pop(pid).kill9()

    def enqueue(self, count: int) -> None:
        """Delayed jobs, jobs of tenants, and jobs with keys."""
        numbers = range(self.sent, self.sent + count)
        tenants = [("soaked.work", (number, 0.0, False), {}) for number in numbers if number % 3]
        self.rig.client.enqueue_many(tenants[::2], tenant="a")
        self.rig.client.enqueue_many(tenants[1::2], tenant="b")
        for number in numbers[::3]:
            way = {"delay": 1 + number % 10 / 10} if number % 2 else {"unique": "until_done", "unique_key": f"{number}"}
            self.rig.client.enqueue("soaked.work", (number, 0.0, False), {}, **way)  # type: ignore[arg-type]
        self.sent += count

    def ran(self) -> Counter[int]:
        return Counter(run.number for run in runs(self.rig.lines("runs")))

    def ticks(self) -> Counter[int]:
        return Counter(run.number for run in runs(self.rig.lines("ticks")))

    def end(self, *, moved_twice: int) -> None:
        """Wait until all jobs have run, each once, but for this many delayed or tenants' ones."""
        eventually(lambda: len(self.ran()) == self.sent)
        again = {number: times for number, times in self.ran().items() if times != 1}
        keyed = [number for number in again if number % 6 == 0]
        assert keyed == [], again
        assert len(again) <= moved_twice, again
        assert set(again.values()) <= {2}
        assert self.rig.errors() == {}
        eventually(lambda: self.rig.inspector.keys.list() == [])
        assert all(worker.alive for worker in (self.runner, *self.keepers.values()))
        assert not has_traceback(self.runner.log + "".join(worker.log for worker in self.keepers.values()))

    def missed_and_repeated(self) -> tuple[list[int], int]:
        """Which seconds until now had no tick, and how many runs of ticks there were too many."""
        end = time.time()
        eventually(lambda: max(self.ticks(), default=0) > end)
        ticks = self.ticks()
        missed = [second for second in range(min(ticks), max(ticks)) if not ticks[second]]
        return missed, ticks.total() - len(ticks)


def leader(rig: Rig) -> int:
    return next((int(row["pid"]) for row in rig.workers() if row["clock"]), 0)


def test_a_stopped_leader_is_replaced_and_does_nothing_later(module_node: Node, exchange: str, tmp_path: Path) -> None:
    # So that RabbitMQ soon sees that a leader is stopped, and not that the machine stood still for a while.
    with Rig(tmp_path, f"{url_of(module_node)}?heartbeat=5", exchange, module="shop") as rig:
        duties = Duties(rig, module_node).begun({}, {})
        first = duties.leader()
        duties.enqueue(60)
        stopped = duties.keepers[first].tree()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            second = duties.leader(after=first)
            duties.enqueue(60)
            eventually(lambda: len(duties.ran()) >= duties.sent)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        # It has to find out by itself that it leads no more, and may lead again only when the other ends.
        eventually(lambda: duties.keepers[first].log.count("INFO connected") >= 2)
        duties.enqueue(60)
        duties.end(moved_twice=MOVED)

        assert duties.missed_and_repeated() == ([], 0)
        eventually(lambda: leader(rig) == second)


def test_wrong_clocks_double_and_skip_no_duty_of_the_leader(rig: Rig, module_node: Node) -> None:
    clocks = [rig.path / f"clock {wrong_by}" for wrong_by in CLOCKS]
    for clock, wrong_by in zip(clocks, CLOCKS, strict=True):
        clock.write_text(str(wrong_by))
    duties = Duties(rig, module_node).begun(*({"program": "misled.py", "CLOCK": str(clock)} for clock in clocks))
    while True:
        first, ran = duties.leader(), len(duties.ran())
        duties.enqueue(30)
        if len(duties.keepers) == 1:
            break
        # A delayed one waits for as long as a clock that leads is behind.
        eventually(lambda ran=ran: len(duties.ran()) >= ran + 25)  # type: ignore[misc]
        duties.kill(first)
    duties.end(moved_twice=len(CLOCKS) * MOVED)

    assert {tick: times for tick, times in duties.ticks().items() if times != 1} == {}


def test_the_error_of_a_unique_job_names_the_stopped_leader(rig: Rig) -> None:
    # RabbitMQ must not drop the leader's session before the enqueue gives up.
    worker = rig.worker("-q", "idle", times={"palermo.brokers.rabbitmq.leadership.leader._HEARTBEAT": 60})
    client = Client(Settings(url=rig.url, exchange=rig.exchange, publish_timeout=10.0))
    # This program has heard of the worker: of others it learns no name.
    workers = Inspector(client).workers
    eventually(lambda: [row["pid"] for row in workers.list() if "main" in (row["duties"] or ())] == [worker.pid])
    client.enqueue("shop.note", ("x",), unique="until_done", unique_key="0")
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LeaderUnavailable, match=f"the main leader, worker pid:{worker.pid}@.*, does not answer"):
            client.enqueue("shop.note", ("x",), unique="until_done", unique_key="1")
        with pytest.raises(LeaderUnavailable, match=f"worker pid:{worker.pid}@"):
            Inspector(client).keys.list()
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        client.close()
