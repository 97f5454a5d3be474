"""The cost of tracing for a job, in a process that traces and in one that does not: `python -m benchmarks.traced`.

One enqueue is entering and leaving its span, and marking the message; one run the same, with its result.
Nothing is sent: the spans go to a processor that drops them. Microseconds of processor time, the median of rounds.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from palermo import tracing
from palermo.core.lifecycle import Succeeded
from palermo.core.message import Message

#: What is measured, each in a process of its own, since OpenTelemetry cannot be taken away again.
STATES = {
    "nobody imported OpenTelemetry": "",
    "imported, without a provider": "api",
    "an SDK, which drops its spans": "sdk",
}

_MESSAGE = Message(id="7c9e6679-7425-40de-944b-e07fc1f90ae7", queue="mail", job="shop.SendMail", body=b"[1]")
_SUCCEEDED = Succeeded()


def enqueue() -> None:
    with tracing.enqueuing("shop.SendMail") as span:
        if span is not None:
            span.traced(_MESSAGE)


def run() -> None:
    with tracing.running(_MESSAGE, worker="pid:1@host/worker-1") as span:
        if span is not None:
            span.ended(_SUCCEEDED)


def measured(work: Callable[[], None], times: int, rounds: int) -> float:
    """Microseconds that one costs, above an empty loop."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            pass
        empty = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - empty - (empty - began)) / times * 1e6)
    return statistics.median(found)


def prepare(state: str) -> None:
    """Make this process one that traces so."""
    if state:
        from opentelemetry import trace
    if state == "sdk":
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        provider = TracerProvider()
        provider.add_span_processor(SpanProcessor())
        trace.set_tracer_provider(provider)


def main() -> None:
    parser = argparse.ArgumentParser(description="What tracing costs an enqueue and a run.")
    parser.add_argument("-n", type=int, default=20_000, help="how often, in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--state", choices=STATES.values(), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.state is not None:
        prepare(given.state)
        print(*(f"{measured(work, given.n, given.rounds):.2f}" for work in (enqueue, run)))
        return
    print(f"{'':32} {'an enqueue':>12} {'a run':>12}   µs")
    for name, state in STATES.items():
        command = [sys.executable, "-m", "benchmarks.traced", f"-n={given.n}", f"--rounds={given.rounds}"]
        done = subprocess.run([*command, f"--state={state}"], check=True, capture_output=True, text=True)
        for_enqueue, for_run = done.stdout.split()
        print(f"{name:32} {for_enqueue:>12} {for_run:>12}")


if __name__ == "__main__":
    main()
