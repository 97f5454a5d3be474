"""The threads of a shared child: a long job keeps none waiting, and there are no more of them than slots."""

import threading
from collections.abc import Callable
from random import Random

from palermo.worker.child.shared_slots import JobThreads
from tests.helpers import eventually


def test_a_long_job_keeps_none_of_the_others_waiting() -> None:
    threads, gate, done = JobThreads(3), threading.Event(), list[int]()

    threads.put(gate.wait)
    threads.put(gate.wait)
    for number in range(50):
        threads.put(lambda number=number: done.append(number))  # type: ignore[misc]
        eventually(lambda number=number: done[-1:] == [number])  # type: ignore[misc]
    gate.set()


def test_as_many_threads_are_started_and_run_at_once_as_there_are_slots() -> None:
    threads, together, done = JobThreads(4), threading.Barrier(4), list[str]()

    def meet() -> None:
        together.wait(60)
        done.append(threading.current_thread().name)

    for _ in range(20):
        before = len(done)
        for _ in range(4):
            threads.put(meet)
        eventually(lambda before=before: len(done) == before + 4)  # type: ignore[misc]

    assert len(set(done)) == 4


def test_all_that_is_given_is_done_whatever_the_threads_do_meanwhile() -> None:
    threads, chance, free = JobThreads(4), Random(7), threading.Semaphore(4)
    done: list[int] = []

    def work(number: int, seconds: float) -> Callable[[], None]:
        def run() -> None:
            if seconds:
                threading.Event().wait(seconds)
            done.append(number)
            free.release()

        return run

    for number in range(2_000):
        assert free.acquire(timeout=60)
        threads.put(work(number, 0.002 * (chance.random() < 0.05)))

    eventually(lambda: sorted(done) == list(range(2_000)))
