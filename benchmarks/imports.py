"""The cost of importing Palermo, for a module that declares jobs: `python -m benchmarks.imports`.

CPU of a fresh interpreter that does nothing else, each in turn, so that other work of the machine hits all of them. The
lowest of many is the price of the import; the median is its price on this machine at this hour.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.contest import machine
from benchmarks.processes import compiled, spent_by_children

#: What is imported, by what is printed beside it. The first is what all others contain.
PROGRAMS = {
    "nothing": "pass",
    "palermo": "import palermo",
    "palermo, and a job": "import palermo\n@palermo.job(queue='mail')\ndef send(to): ...",
    "palermo, to enqueue": "import palermo.client.client, palermo.brokers.rabbitmq",
    "pika": "import pika",
}


def cost(program: str) -> float:
    """Milliseconds of CPU of an interpreter that runs this; it finds its modules compiled."""
    before = spent_by_children()
    # Elsewhere, so that nothing of the current directory is looked at.
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tempfile.gettempdir(), env=_environment())
    return (spent_by_children() - before) * 1e3


def _environment() -> dict[str, str]:
    return compiled(os.environ) | {"PYTHONPATH": str(Path(__file__).parent.parent)}


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of importing Palermo, beside an interpreter that does nothing.")
    parser.add_argument("--rounds", type=int, default=15, help="%(default)s unless given")
    given = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for program in PROGRAMS.values():
        cost(program)  # compiles what is not compiled yet
    for _ in range(given.rounds):
        for name, program in PROGRAMS.items():
            taken[name].append(cost(program))
    print(f"imports: CPU of an interpreter; {machine()}; {given.rounds} rounds\n")
    print(f"{'':>20} {'lowest ms':>10} {'median ms':>10} {'above nothing':>14}")
    nothing = statistics.mean(taken["nothing"])
    for name, each in taken.items():
        above = statistics.mean(each) - nothing
        print(f"{name:>20} {min(each):>10.0f} {statistics.median(each):>10.0f} {above:>14.0f}")


if __name__ == "__main__":
    main()
