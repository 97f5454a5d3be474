"""Starts a system's chord and prints the sum: `python -m benchmarks.peers.chord.client SYSTEM JOBS SECONDS`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    system, count, within = sys.argv[1:]
    print(import_module(f"benchmarks.peers.chord.{system}").run(int(count), float(within)))
