"""Tenants of a queue, and jobs that take batches: F1, F4, F8."""

from tests.harness.rig import Rig
from tests.helpers import eventually


def test_F1_one_tenant_of_a_queue_is_looked_up(rig: Rig) -> None:
    for tenant, count in (("acme", 3), ("zebra", 1)):
        calls = [("shop.note", [f"{tenant} {number}"], {}) for number in range(count)]
        rig.client.enqueue_many(calls, queue="mail", tenant=tenant)
    acme = {"tenant": "acme", "queue": "mail", "pending": 3, "share": 1.0}

    eventually(lambda: list(rig.inspector.tenants("mail", "acme")) == [acme])

    assert rig.rows("tenants", "mail", "--tenant", "acme") == [acme]
    assert rig.rows("tenants", "mail", "--tenant", "nobody") == []
    assert sorted(row["tenant"] for row in rig.rows("tenants", "mail")) == ["acme", "zebra"]


def test_F4_one_bad_message_of_a_batch_fails_alone_and_no_other_runs_again(rig: Rig) -> None:
    ids = {row: rig.enqueue("loads.load", row) for row in ("a", "bad", "b", "c")}

    rig.burst("-c", "1", modules=("loads",))

    assert rig.errors() == {ids["bad"]: ("ValueError", "no row 'bad'")}
    assert sorted(" ".join(rig.lines()).split()) == ["a", "b", "bad", "c"]
    assert rig.pending() == 0


def test_F4_a_row_that_crashes_the_process_fails_alone_and_rows_marked_as_done_are_done(rig: Rig) -> None:
    ids = {row: rig.enqueue("loads.store", row) for row in ("a", "bad", "b", "c")}

    rig.burst("-c", "1", modules=("loads",))

    assert [(id, error.class_name) for id, error in rig.errors().items()] == [(ids["bad"], "palermo.errors.JobCrashed")]
    assert sorted(rig.lines()) == ["a", "b", "bad", "bad", "c"]
    assert rig.pending() == 0


def test_F8_what_a_killed_worker_had_of_tenants_runs_again_and_nobody_does_anything(rig: Rig) -> None:
    tenants = ("acme", "zebra")
    for tenant in tenants:
        rig.client.enqueue_many([("shop.hold", [tenant], {}), ("shop.note", [tenant], {})], tenant=tenant)
    victim = rig.worker("-c", "2")
    rig.await_lines(2)

    victim.kill9()
    rig.worker("-c", "2")

    # On Redis the other jobs may run before the lease of the killed worker ends.
    begun = sorted(2 * [f"{tenant} begins" for tenant in tenants])
    eventually(lambda: sorted(line for line in rig.lines() if line.endswith(" begins")) == begun)
    rig.open_gate()
    rig.await_lines(8)
    eventually(lambda: list(rig.inspector.tenants("jobs")) == [])
    assert sorted(rig.lines()) == sorted([*begun, *tenants, *(f"{tenant} ends" for tenant in tenants)])
    assert rig.failed() == {}
