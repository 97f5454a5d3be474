"""Runs one soak: causes faults for a while, lets the workers finish, and checks the results."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from soak.account import Account
from soak.arena import Arena, held
from soak.faults import Faults
from tests.helpers import has_traceback
from tests.rabbitmq_node import Node

#: From this duration in seconds, the soak continues until each kind of fault has been used.
EACH_KIND = 60.0

#: Seconds without a started job after which the remaining jobs count as stuck. Workers need part of that to give up
#: silent connections and open new ones.
DRAIN = 60.0

#: MB by which a worker may grow after the first third of the soak. Becoming the leader takes 5 to 10.
GROWTH = 16.0


def soak(
    path: Path, node: Node, *, seconds: float, seed: str, parts: frozenset[str], say: Callable[[str], None]
) -> list[str]:
    """Soak this node, and return every broken promise."""
    say(f"soaking for {seconds:g} s with SEED={seed} PARTS={','.join(sorted(parts)) or 'none'}")
    with Arena(path, node, seed=seed, parts=parts) as arena:
        began = time.monotonic()
        faults = Faults(arena)
        # By then, workers have led, lost their connections and read what others had left.
        faults.inject(seconds / 3)
        before = arena.sizes
        faults.inject(seconds * 2 / 3)
        faults.end(each_kind=seconds >= EACH_KIND)
        ended = time.monotonic()
        stuck = arena.finish(within=DRAIN)
        drained = time.monotonic()
        after = arena.sizes
        account = Account(arena, stuck)
        wrongs = account.wrongs
        if wrongs:
            wrongs += [*arena.log_lines_about(wrongs), *map(str, arena.records.faults)]
        codes = _stop(arena)
        logs = arena.logs

        say(f"book of seed {seed}: {ended - began:.0f} s, drained for {drained - ended:.1f} s")
        for line in account.lines:
            say(f"  {line}")
        sizes = "; ".join(f"{name} {before[name]:.1f} to {after[name]:.1f}" for name in arena.steady)
        say(f"  MB of parents: {sizes}")
        return [
            *wrongs,
            *(f"left in queue {name!r}: {count} messages" for name, count in held(node).items()),
            *(f"exit code {code} of worker {name!r}" for name, code in codes.items() if code),
            *(f"traceback of worker {arena.names[pid]!r}:\n{log}" for pid, log in logs.items() if has_traceback(log)),
            *(
                f"worker {name!r} grew from {before[name]:.1f} to {after[name]:.1f} MB"
                for name in arena.steady
                if after[name] - before[name] >= GROWTH
            ),
        ]


def _stop(arena: Arena) -> dict[str, int]:
    """Stop the workers with TERM, and return their exit codes."""
    for worker in arena.workers.values():
        worker.send(signal.SIGTERM)
    return {name: worker.wait() for name, worker in arena.workers.items()}
