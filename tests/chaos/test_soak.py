"""A bad day: workers of every pool, and all that can happen to them, their broker, its queues and the lines between.

By count and by id: no job is lost, none is stuck, `failed` holds those that raise and those whose process was killed,
nothing ran twice without a reason, no key is left behind, no tick is missed, and no worker has grown. `make soak` runs
it for ten minutes; a seed that is printed brings back the same faults in the same order, though not the same instants.
PARTS=tenants,unique or PARTS=-hostile switches what parts.py lists.
"""

import os
import secrets
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.account import Account
from tests.chaos.faults import Faults
from tests.chaos.parts import PARTS
from tests.chaos.site import Site, held
from tests.helpers import has_traceback
from tests.rabbitmq_node import Node

#: In the ordinary suite a few faults, the same ones each time; each kind of fault comes about from a minute on.
SHORT, EACH_KIND = 8.0, 60.0

SECONDS = float(os.environ.get("PALERMO_SOAK_SECONDS") or SHORT)
SEED = os.environ.get("PALERMO_SOAK_SEED") or ("suite" if SECONDS == SHORT else secrets.token_hex(4))

#: Seconds of bad weather before the workers' size is taken for the first time: by then they have led, lost their lines,
#: and read what others left behind. What they grow by after that may not come from it.
WARM = SECONDS / 3

#: Seconds without a job that begins after which what is left is stuck: lines that were silent are given up, and opened
#: again.
DRAIN = 60.0

#: MB by which a worker may grow. One that becomes the leader grows by 5 to 10 MB at once, and stays so.
GROWTH = 16.0


@pytest.mark.timeout(SECONDS + 600)
def test_every_job_runs_once_but_for_good_reasons_whatever_happens_to_workers_broker_and_lines(
    private_node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nsoaking for {SECONDS:g} s with PALERMO_SOAK_SEED={SEED} PALERMO_SOAK_PARTS={','.join(sorted(PARTS))}")
    with Site(tmp_path, private_node, seed=SEED, parts=PARTS) as site:
        began = time.monotonic()
        faults = Faults(site)
        faults.deal(WARM)
        before = site.sizes
        faults.deal(SECONDS - WARM)
        faults.end(each_kind=SECONDS >= EACH_KIND)
        ended = time.monotonic()
        stuck = site.finish(within=DRAIN)
        drained = time.monotonic()
        after = site.sizes
        account = Account(site, stuck)
        sizes = "; ".join(f"{name} {before[name]:.1f} to {after[name]:.1f}" for name in site.steady)
        codes = stop(site)

        with capsys.disabled():
            print(
                f"book of seed {SEED}: {ended - began:.0f} s, drained for {drained - ended:.1f} s",
                *account.lines,
                f"MB of parents: {sizes}",
                sep="\n  ",
            )
        assert not account.wrongs, "\n".join(
            [*account.wrongs, *site.said_of(account.wrongs), *map(str, site.records.harms)]
        )
        assert held(private_node) == {}
        assert set(codes.values()) == {0}, codes
        assert [log for log in site.logs.values() if has_traceback(log)] == []
        assert all(after[name] - before[name] < GROWTH for name in site.steady)


def stop(site: Site) -> dict[str, int]:
    """Each worker's exit code, after TERM."""
    for worker in site.workers.values():
        worker.send(signal.SIGTERM)
    return {name: worker.wait() for name, worker in site.workers.items()}
