"""`palermo demo` as a process of its own, with a folder for what it may leave behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

#: Runs `palermo demo` with these arguments, and expects this exit code.
Demo = Callable[..., "subprocess.CompletedProcess[str]"]

COMMAND = [str(Path(sys.executable).with_name("palermo")), "demo"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where temporary files go; its name has to be quoted in a URL and in a shell."""
    folder = tmp_path / "temporary files, 100%"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(scratch: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
    # What is set for the user's own jobs must not matter.
    return {**clean, "TMPDIR": str(scratch), "PALERMO_URL": "amqp://nobody:x@127.0.0.1:1/", "PALERMO_SERIALIZER": "nil"}


@pytest.fixture
def demo(tmp_path: Path, environment: dict[str, str]) -> Demo:
    def run(*arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def running(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts `palermo demo` in a process group of its own, as a terminal would."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        started.append(
            subprocess.Popen(
                [*COMMAND, *arguments],
                env=environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )
        )
        return started[-1]

    yield start
    for process in started:
        # Killed outright it could not stop its worker.
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
