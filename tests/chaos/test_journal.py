"""A journal that is deleted, refused, blocked or full: jobs go on, a warning says it, and it comes back by itself."""

from collections.abc import Callable

import pika
import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.core.topology import internal
from tests.acceptance.place import Place, Worker
from tests.helpers import eventually
from tests.journal.reading import Journal
from tests.rabbitmq_node import Node, url_of

#: Few, so that a batch of 250 ms holds them.
JOBS = 20


def work(place: Place, name: str, count: int = JOBS) -> None:
    """Have so many jobs run, and wait for them."""
    wanted = [f"{name} {number}" for number in range(count)]
    for text in wanted:
        place.enqueue("note", text)
    eventually(lambda: set(wanted) <= set(place.lines()))


def says(worker: Worker, text: str) -> Callable[[], bool]:
    return lambda: text in worker.log


def test_a_journal_that_was_deleted_is_made_anew(place: Place, exchange: str, caplog: pytest.LogCaptureFixture) -> None:
    worker = place.worker(PALERMO_JOURNAL="all")
    work(place, "before")
    Journal(place.client).until(JOBS, "succeeded")

    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        connection.channel().queue_delete(internal(exchange, "journal"))
    work(place, "after")

    # The first process that writes finds out: the worker, or the enqueuing client.
    made = "the journal was deleted, and is made anew"
    eventually(lambda: made in caplog.text or made in worker.log)
    journal = Journal(place.client)
    journal.until(JOBS, "succeeded")
    assert place.lines() == [f"before {n}" for n in range(JOBS)] + [f"after {n}" for n in range(JOBS)]


def test_a_journal_that_is_refused_holds_nothing_up(place: Place, module_node: Node, exchange: str) -> None:
    # Else the test itself would make it.
    place.client = Client(replace(place.client.settings, journal="off"))
    module_node.ctl("add_user", "worker", "secret")
    allow = lambda pattern: module_node.ctl("set_permissions", "worker", pattern, ".*", ".*")  # noqa: E731
    allow(f"^(?!{exchange}\\.~journal).*$")
    worker = place.worker(PALERMO_URL=url_of(module_node, user="worker", password="secret"), PALERMO_JOURNAL="all")

    work(place, "refused")

    eventually(says(worker, "the journal cannot be written, jobs go on without it for now"))
    assert "write and read permission" in worker.log
    allow(".*")
    eventually(says(worker, "the journal is written again"))
    Journal(place.client).until(JOBS, "succeeded")
    assert place.lines() == [f"refused {n}" for n in range(JOBS)]
    module_node.ctl("delete_user", "worker")
    place.client.close()


def test_jobs_go_on_while_an_alarm_blocks_the_journal(place: Place, module_node: Node) -> None:
    worker = place.worker(PALERMO_PUBLISH_TIMEOUT="1", PALERMO_JOURNAL="all")
    for number in range(JOBS):
        place.enqueue("hold", f"{number}")
    place.await_lines(1)
    module_node.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        eventually(lambda: "alarm" in module_node.ctl("status").lower())
        place.open_gate()
        place.await_lines(2 * JOBS)
        eventually(says(worker, "the journal cannot be written, jobs go on without it for now"))
    finally:
        module_node.ctl("set_vm_memory_high_watermark", "0.4")
    eventually(says(worker, "the journal is written again"))
    journal = Journal(place.client)
    journal.until(JOBS, "succeeded")
    eventually(lambda: journal.counted("succeeded") == JOBS)
    assert place.pending() == 0
