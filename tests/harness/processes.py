"""Running workers, and what the kernel says of processes."""

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.helpers import HANGS, eventually


class WorkerProcess:
    """A running `palermo worker`, and what it has logged."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = HANGS) -> int:
        """The exit code, once it has ended."""
        eventually(lambda: not self.alive, within=within)
        return self._process.wait()

    def stop(self) -> int:
        """Have it finish what it runs, and end; the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill9(self) -> None:
        """Kill the worker's parent process, as the kernel does when memory runs out."""
        self._process.kill()
        self._process.wait(HANGS)

    def end(self) -> None:
        if self.alive:
            self.kill9()

    def children(self) -> list[int]:
        """The template and its slots."""
        template = children(self.pid)
        return template + [slot for pid in template for slot in children(pid)]

    def tree(self) -> list[int]:
        """The parent, its template and its slots."""
        return [self.pid, *self.children()]

    def grown(self, processes: int) -> list[int]:
        """The template and its slots, once there are that many."""
        return eventually(lambda: found if len(found := self.children()) == processes else [])

    def title(self) -> str:
        return title(self.pid)

    def dump(self, shown: Callable[[str], bool]) -> None:
        """Have it log stacks until its log shows this: it logs none of a slot that gets no turn for 2 s."""

        def asked() -> bool:
            self.send(signal.SIGTTIN)
            with suppress(AssertionError):
                return eventually(lambda: shown(self.log), within=5)
            return False

        eventually(asked)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def title(pid: int) -> str:
    """What `ps` shows of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
