"""Jobs with odd names, ids, keys and errors, enqueued as any other, on each broker."""

from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback


def test_odd_jobs_end_in_failed_and_the_jobs_behind_them_run(any_rig: Rig) -> None:
    enqueue = any_rig.client.enqueue
    ids = [
        enqueue("hostile.no\0te", ("a",), {}).id,
        enqueue("hostile.\u2028\x1b[31m", ("a",), {}).id,
        enqueue("mixed.hostile", ("a",), {}, id="nul\0id").id,
        enqueue("mixed.hostile", ("a",), {}, id="é" * 127).id,
        enqueue("mixed.monster", ("a",), {}).id,
        enqueue("hostile.no\0te", ("a",), {}, delay=0.1, tenant="t\0").id,
        enqueue("mixed.hostile", ("a",), {}, limit=1, limit_key="k\0", unique="until_done", unique_key="u\0").id,
    ]
    enqueue("hostile.note", ("behind",), {})

    # Not a burst: that may be over before the leader has moved the delayed job to its queue.
    worker = any_rig.worker("-c", "2", modules=("hostile",), PALERMO_TEST_NOTES=str(any_rig.notes_path))

    eventually(lambda: len(any_rig.errors()) == len(ids) and any_rig.lines() == ["behind"])
    assert worker.stop() == 0
    failed, log = any_rig.errors(), worker.log
    assert set(failed) == set(ids)
    assert (log.count(" connected "), has_traceback(log)) == (1, False)
    assert len(failed[ids[4]][0]) == 500
    assert failed[ids[2]][0] == "ValueError"
