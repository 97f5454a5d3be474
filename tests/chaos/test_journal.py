"""A journal that is refused or blocked: jobs go on, a warning says it, and it comes back by itself."""

from msgspec.structs import replace

from palermo.client.client import Client
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.journal.reading import Journal
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of

#: Few, so that a batch of 250 ms holds them.
JOBS = 20


def test_a_journal_that_is_refused_holds_nothing_up(rig: Rig, module_node: Node, exchange: str) -> None:
    # Else the test itself would make it.
    rig.client = Client(replace(rig.client.settings, journal="off"))
    add_user(module_node, "worker", "secret")
    set_permissions(module_node, "worker", f"^(?!{exchange}\\.~journal).*$", ".*", ".*")
    worker = rig.worker(PALERMO_URL=url_of(module_node, user="worker", password="secret"), PALERMO_JOURNAL="all")

    for number in range(JOBS):
        rig.enqueue("note", f"{number}")
    assert rig.await_lines(JOBS) == [f"{number}" for number in range(JOBS)]
    eventually(lambda: "the journal cannot be written" in worker.log)
    assert "write and read permission" in worker.log
    set_permissions(module_node, "worker", ".*", ".*", ".*")
    eventually(lambda: "the journal is written again" in worker.log)
    Journal(rig.client).until(JOBS, "succeeded")
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
        eventually(lambda: "the journal cannot be written" in worker.log)
    finally:
        module_node.ctl("set_vm_memory_high_watermark", "0.4")
    eventually(lambda: "the journal is written again" in worker.log)
    journal = Journal(rig.client)
    journal.until(JOBS, "succeeded")
    eventually(lambda: journal.counted("succeeded") == JOBS)
    assert rig.pending() == 0
