"""A journal that is deleted, refused, blocked or full: jobs go on, a warning says it, and it comes back by itself."""

from collections.abc import Callable

import pika
import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.core.topology import internal
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.journal.reading import Journal
from tests.rabbitmq_node import Node, url_of

#: Few, so that a batch of 250 ms holds them.
JOBS = 20


def work(rig: Rig, name: str, count: int = JOBS) -> None:
    """Have so many jobs run, and wait for them."""
    wanted = [f"{name} {number}" for number in range(count)]
    for text in wanted:
        rig.enqueue("note", text)
    eventually(lambda: set(wanted) <= set(rig.lines()))


def says(worker: WorkerProcess, text: str) -> Callable[[], bool]:
    return lambda: text in worker.log


def test_a_journal_that_was_deleted_is_made_anew(rig: Rig, exchange: str, caplog: pytest.LogCaptureFixture) -> None:
    worker = rig.worker(PALERMO_JOURNAL="all")
    work(rig, "before")
    Journal(rig.client).until(JOBS, "succeeded")

    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        connection.channel().queue_delete(internal(exchange, "journal"))
    work(rig, "after")

    # The first process that writes finds out: the worker, or the enqueuing client.
    made = "the journal was deleted, and is made anew"
    eventually(lambda: made in caplog.text or made in worker.log)
    journal = Journal(rig.client)
    journal.until(JOBS, "succeeded")
    assert rig.lines() == [f"before {n}" for n in range(JOBS)] + [f"after {n}" for n in range(JOBS)]


def test_a_journal_that_is_refused_holds_nothing_up(rig: Rig, module_node: Node, exchange: str) -> None:
    # Else the test itself would make it.
    rig.client = Client(replace(rig.client.settings, journal="off"))
    module_node.ctl("add_user", "worker", "secret")
    allow = lambda pattern: module_node.ctl("set_permissions", "worker", pattern, ".*", ".*")  # noqa: E731
    allow(f"^(?!{exchange}\\.~journal).*$")
    worker = rig.worker(PALERMO_URL=url_of(module_node, user="worker", password="secret"), PALERMO_JOURNAL="all")

    work(rig, "refused")

    eventually(says(worker, "the journal cannot be written, jobs go on without it for now"))
    assert "write and read permission" in worker.log
    allow(".*")
    eventually(says(worker, "the journal is written again"))
    Journal(rig.client).until(JOBS, "succeeded")
    assert rig.lines() == [f"refused {n}" for n in range(JOBS)]
    module_node.ctl("delete_user", "worker")
    rig.client.close()


def test_jobs_go_on_while_an_alarm_blocks_the_journal(rig: Rig, module_node: Node) -> None:
    worker = rig.worker(PALERMO_PUBLISH_TIMEOUT="1", PALERMO_JOURNAL="all")
    for number in range(JOBS):
        rig.enqueue("hold", f"{number}")
    rig.await_lines(1)
    module_node.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        eventually(lambda: "alarm" in module_node.ctl("status").lower())
        rig.open_gate()
        rig.await_lines(2 * JOBS)
        eventually(says(worker, "the journal cannot be written, jobs go on without it for now"))
    finally:
        module_node.ctl("set_vm_memory_high_watermark", "0.4")
    eventually(says(worker, "the journal is written again"))
    journal = Journal(rig.client)
    journal.until(JOBS, "succeeded")
    eventually(lambda: journal.counted("succeeded") == JOBS)
    assert rig.pending() == 0
