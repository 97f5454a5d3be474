"""The cost of the worker's log: some slots drain a queue of jobs that do nothing, at two levels of the log.

    python -m benchmarks.logged               the default, info, against warning, which says nothing of such jobs
    python -m benchmarks.logged --level debug --slots 2

Two workers on two queues take turns as in benchmarks.drain. Each writes its log to a file.
"""

import shlex
import tempfile

from benchmarks.contest import contest
from benchmarks.drain import WORKER
from benchmarks.ground import ground, parser_of
from benchmarks.journaled import OTHER_QUEUE, play

#: The least that a worker is to reach of what it does without a log.
GOAL = 0.97


def main() -> None:
    parser = parser_of("Drain a queue with the default log of a worker, against a worker without one.", jobs=20_000)
    parser.add_argument("--slots", type=int, default=1, help="of both workers; %(default)s unless given")
    parser.add_argument("--level", choices=("debug", "info"), default="info", help="%(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place, tempfile.NamedTemporaryFile() as log:

        def worker(level: str, queue: str) -> list[str]:
            command = [*WORKER, "-q", queue, "--no-scheduler", "-c", str(given.slots), "--log-level", level]
            return ["sh", "-c", f"exec {shlex.join(command)} 2>>{log.name}"]

        wire = place.wire()
        place.make(OTHER_QUEUE)
        contest(
            f"log: {given.slots} of a worker's slots, no-op jobs from one queue, {given.level!r} against 'warning'",
            lambda _: play(
                place, wire, lambda queue: worker(given.level, queue), lambda queue: worker("warning", queue), given.n
            ),
            rounds=given.rounds,
            goal=GOAL,
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
            names=(given.level, "warning"),
        )


if __name__ == "__main__":
    main()
