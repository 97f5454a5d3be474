"""RabbitMQ's disk alarm: it takes nothing from publishers, and all wait them out."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from palermo.errors import BrokerUnavailable
from tests.chaos.outpost import POLLED, PUBLISH, PUSHED, Outpost
from tests.helpers import eventually
from tests.rabbitmq_node import clear_alarm, raise_alarm

#: See the fixture `shared`.
HEARTBEAT = 30


@pytest.fixture(autouse=True)
def _cleared(outpost: Outpost) -> Iterator[None]:
    yield
    clear_alarm(outpost.node, "disk")


def test_running_jobs_end_well_enqueuing_says_why_it_waits_and_all_goes_on(outpost: Outpost) -> None:
    held, gate = outpost.hold(), f"gate-{outpost.number()}"
    failing = [f"{queue} fails {outpost.number()}" for queue in (PUSHED, POLLED[0])]
    for text in failing:
        outpost.enqueue("hold_and_fail", text, gate)
    eventually(lambda: {f"{text} begins" for text in failing} <= set(outpost.rig.lines()))
    # Each leader opens a connection of its own.
    eventually(lambda: sum(len(row["duties"] or ()) for row in outpost.rig.workers()) == 2)
    raise_alarm(outpost.node, "disk")
    outpost.release()
    eventually(lambda: outpost.ended(held))
    outpost.rig.open_gate(gate)
    connections, blocked = outpost.proxy.accepted, f"jobs blocked {outpost.number()}"
    with pytest.raises(BrokerUnavailable, match="alarm"):
        outpost.enqueue("note", blocked)
    # Nothing to gain: on another connection the job would be stored a second time when the alarm ends.
    assert outpost.proxy.accepted == connections
    outpost.both_say("waiting to store")
    waiting = f"jobs waited {outpost.number()}"
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(outpost.enqueue_at_last, "note", waiting, within=PUBLISH + 60)
        clear_alarm(outpost.node, "disk")
        done.result()

    outpost.all_is_well()
    eventually(lambda: waiting in outpost.rig.lines())
    lines = outpost.rig.lines()
    assert lines.count(blocked) <= 1
    for text in (*held, *failing):
        assert lines.count(f"{text} begins") == 1

    def failed() -> list[int]:
        errors = outpost.rig.errors().values()
        return [sum(text in error for error in errors) for text in failing]

    # A worker tries again after a while.
    eventually(lambda: failed() == [1, 1])
    assert "connection lost" not in "".join(outpost.logs.values())


def test_the_key_of_a_job_whose_end_was_lost_is_freed(outpost: Outpost) -> None:
    text, gate = f"jobs keyed {outpost.number()}", f"gate-{outpost.number()}"
    outpost.rig.enqueue("hold", text, gate, queue="jobs", unique="until_done", unique_key=text)
    eventually(lambda: f"{text} begins" in outpost.rig.lines())

    raise_alarm(outpost.node, "disk")
    outpost.rig.open_gate(gate)
    eventually(lambda: f"{text} ends" in outpost.rig.lines())
    outpost.proxy.hang_up()
    outpost.both_say("connection lost")
    clear_alarm(outpost.node, "disk")

    outpost.all_is_well()
    eventually(lambda: not outpost.rig.inspector.keys.list())
