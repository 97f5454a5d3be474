"""Running worker processes, and information about processes from the kernel."""

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.helpers import HANGS, eventually


class WorkerProcess:
    """A running `palermo worker` and its log."""

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
        """Wait until it ends, and return its exit code."""
        eventually(lambda: not self.alive, within=within)
        return self._process.wait()

    def stop(self) -> int:
        """Let it finish the running jobs and end, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill9(self) -> None:
        """Kill the worker's parent process with SIGKILL, like the kernel when memory runs out."""
        self._process.kill()
        self._process.wait(HANGS)

    def end(self) -> None:
        if self.alive:
            self.kill9()

    def children(self) -> list[int]:
        """Return the pids of the template and its slots."""
        template = children(self.pid)
        return template + [slot for pid in template for slot in children(pid)]

    def tree(self) -> list[int]:
        """Return the pids of the parent, the template and the slots."""
        return [self.pid, *self.children()]

    def grown(self, processes: int) -> list[int]:
        """Return the pids of the template and its slots once there are this many."""
        return eventually(lambda: found if len(found := self.children()) == processes else [])

    def title(self) -> str:
        return title(self.pid)

    def dump(self, shown: Callable[[str], bool]) -> None:
        """Request stacks until the log contains them. The stacks of a slot that isn't scheduled for 2 s are not
        logged.
        """

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
    """Return the title of a process as shown by `ps`."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def exists(pid: int) -> bool:
    """Whether a process exists and isn't a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
