"""A bad day: workers of every pool, and all that can happen to them, their broker and the lines between.

By count and by id: no job is lost, none is stuck, `failed` holds those that raise and those whose process was killed,
nothing ran twice without a reason, and no worker has grown. `make soak` runs it for ten minutes; a seed that is printed
brings back the same faults in the same order, though not the same instants.
"""

import os
import secrets
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.faults import Faults
from tests.chaos.ledger import Ledger, runs, table
from tests.chaos.site import Site
from tests.rabbitmq_node import Node

SECONDS = float(os.environ.get("PALERMO_SOAK_SECONDS", "18"))
SEED = os.environ.get("PALERMO_SOAK_SEED") or secrets.token_hex(4)

#: Seconds of bad weather before the workers' size is taken for the first time.
WARM = min(10.0, SECONDS / 3)

#: Seconds in which all that is left must run: lines that were silent are given up, and opened again.
DRAIN = 40.0

#: MB by which a worker may grow.
GROWTH = 8.0


@pytest.mark.timeout(SECONDS + 240)
def test_every_job_runs_once_but_for_good_reasons_whatever_happens_to_workers_broker_and_lines(
    private_node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nsoaking for {SECONDS:g} s with PALERMO_SOAK_SEED={SEED}")
    with Site(tmp_path, private_node, seed=SEED) as site:
        began = time.monotonic()
        faults = Faults(site)
        faults.deal(WARM)
        before = site.sizes
        faults.deal(SECONDS - WARM)
        faults.end()
        ended = time.monotonic()
        site.finish(within=DRAIN)
        drained = time.monotonic()
        after = site.sizes
        failed = site.place.inspector.failed(limit=100_000)
        codes = stop(site)

        ledger = Ledger(
            orders=site.orders,
            runs=runs(site.place.lines("runs")),
            failed=failed,
            harms=site.harms,
            names=site.names,
            logs=site.logs,
        )
        with capsys.disabled():
            print(
                summary(site, ledger, before, after),
                f"soaked for {ended - began:.1f} s, drained for {drained - ended:.1f} s",
                sep="\n",
            )
        assert not ledger.wrongs, "\n".join(ledger.wrongs)
        assert unsettled(private_node) == {}
        assert set(codes.values()) == {0}, codes
        assert [log for log in site.logs.values() if "Traceback" in log] == []
        assert all(after[name] - before[name] < GROWTH for name in site.steady)


def stop(site: Site) -> dict[str, int]:
    """Each worker's exit code, after TERM."""
    for worker in site.workers.values():
        worker.send(signal.SIGTERM)
    return {name: worker.wait() for name, worker in site.workers.items()}


def unsettled(node: Node) -> dict[str, str]:
    """Queues of jobs that are not empty, as the broker itself counts."""
    lines = node.ctl("list_queues", "--no-table-headers", "name", "messages").splitlines()
    counts = dict(line.split("\t") for line in lines)
    return {name: count for name, count in counts.items() if "~" not in name and "failed" not in name and count != "0"}


def summary(site: Site, ledger: Ledger, before: dict[str, float], after: dict[str, float]) -> str:
    log = "".join(site.logs.values())
    sizes = "; ".join(f"{name} {before[name]:.1f} to {after[name]:.1f}" for name in site.steady)
    return "\n".join(
        [
            f"{len(ledger.orders):,} jobs, {ledger.uncertain:,} of them not confirmed",
            f"harm: {table(Counter(harm.kind for harm in site.harms))}",
            f"ran again: {table(ledger.duplicates)}",
            f"settled with the result of another worker: {log.count('settled with the result of another worker'):,}",
            f"in failed: {table(ledger.errors)}",
            f"MB of parents: {sizes}",
        ]
    )
