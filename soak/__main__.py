"""Kill workers and a broker, cut connections and raise alarms under load, then check what happened to every job.

soak/README.md describes the faults, the checks and how to read a failure.
"""

import argparse
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from soak import parts
from soak.run import soak
from soak.storm import BROKERS, Size, storms
from tests import rabbitmq_found
from tests.rabbitmq_node import with_durable_streams


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="time to deal faults for (default: 600)")
    parser.add_argument("--seed", default="", help="seed of an earlier soak, to deal its faults in the same order")
    parser.add_argument(
        "--parts",
        default="",
        metavar="NAMES",
        help="parts to soak with, such as tenants,unique; -hostile leaves one out"
        f" (default: all of {', '.join(sorted(parts.ALL))}); workflows runs storms, see soak/storm.py",
    )
    parser.add_argument(
        "--brokers", default=",".join(BROKERS), metavar="NAMES", help="brokers of the part workflows (default: all)"
    )
    given = parser.parse_args(arguments)
    try:
        chosen = parts.chosen(given.parts)
    except ValueError as error:
        parser.error(str(error))
    seed = given.seed or secrets.token_hex(4)
    if parts.WORKFLOWS in chosen:
        wrongs = storms(given.brokers.split(","), seed=int(seed, 16), size=Size(), say=_say)
        for wrong in wrongs:
            print(wrong, file=sys.stderr)
        return 1 if wrongs else 0
    path = Path(tempfile.mkdtemp(prefix="palermo-soak-"))
    with rabbitmq_found.find()() as node:
        with_durable_streams(node)
        wrongs = soak(path, node, seconds=given.seconds, seed=seed, parts=chosen, say=_say)
    for wrong in wrongs:
        print(wrong, file=sys.stderr)
    _say(f"{'failed' if wrongs else 'passed'}; the workers' logs and the files of the jobs are in {path}")
    return 1 if wrongs else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
