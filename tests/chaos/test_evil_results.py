"""Results that cannot be written down, in workers of every pool: the job is done, and its worker goes on."""

import pytest

from palermo.errors import ResultRefused
from tests.harness.rig import Rig
from tests.helpers import has_traceback

KINDS = (
    *("object", "evil", "dict", "text", "circle", "deep", "generator"),
    *("large", "number", "surrogate", "function", "class", "lock", "exception"),
)


@pytest.mark.parametrize("pool", ["process", "thread"])
def test_a_job_whose_result_cannot_be_written_down_is_done_and_says_so(sqlite_rig: Rig, pool: str) -> None:
    rig = sqlite_rig
    worker = rig.worker("--pool", pool, "-c", "2", modules=("adverse",))
    jobs = {kind: rig.client.enqueue("adverse.give", (kind,)) for kind in KINDS}

    why: dict[str, str] = {}
    for kind, job in jobs.items():
        try:
            job.result(timeout=150)
        except ResultRefused as error:
            why[kind] = str(error)

    assert why.keys() >= {*KINDS} - {"number", "dict", "text"}, worker.log
    assert rig.errors() == {}
    assert sorted(rig.lines("given")) == sorted(KINDS)
    assert worker.alive
    assert not has_traceback(worker.log)
    assert all(len(text) < 1_000 for text in why.values())
