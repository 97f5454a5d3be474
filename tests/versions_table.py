"""The tests that meet a broker, on several versions of RabbitMQ one after the other: `python -m tests.versions_table`.

Prints a table with what passed, failed and was skipped on each; exits with 1 if a test failed, or was skipped without
a reason that names RabbitMQ.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.rabbitmq_node import WANTED
from tests.rabbitmq_versions import SUITES, name_of, server_of

TESTS = ("tests/contract", "tests/rabbitmq", "tests/acceptance", "tests/chaos", "tests/webui/browser")

_ARGUMENTS = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-k", "not sqlite and not redis")


@dataclass(frozen=True)
class Outcome:
    """How the tests ended on one version."""

    version: str
    passed: int
    failed: list[str]
    #: The reason for each skipped test, with its name.
    skipped: dict[str, str]
    seconds: float

    @property
    def row(self) -> str:
        numbers = f"{self.passed:>8}{len(self.failed):>8}{len(self.skipped):>9}"
        return f"{self.version:<12}{numbers}{self.seconds / 60:>8.0f} min"


def run(version: str, arguments: list[str]) -> Outcome:
    """Run the tests on this version."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", *_ARGUMENTS, f"--junitxml={report}", *(arguments or TESTS)],
            env=os.environ | {WANTED: version},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    failed: list[str] = []
    skipped: dict[str, str] = {}
    for case in suite.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (why := case.find("skipped")) is not None:
            skipped[name] = why.get("message", "")
    passed = int(suite.get("tests", 0)) - len(failed) - len(skipped)
    return Outcome(name_of(server_of(version)), passed, failed, skipped, float(suite.get("time", 0)))


def main(arguments: list[str]) -> int:
    outcomes = [run(version, arguments) for version in SUITES]
    print(f"\n{'RabbitMQ':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>8}")
    for outcome in outcomes:
        print(outcome.row)
    for outcome in outcomes:
        for name in outcome.failed:
            print(f"failed on {outcome.version}: {name}")
        for name, why in outcome.skipped.items():
            print(f"skipped on {outcome.version}: {name}: {why}")
    unexplained = [name for outcome in outcomes for name, why in outcome.skipped.items() if "RabbitMQ" not in why]
    return 1 if unexplained or any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
