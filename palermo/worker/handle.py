"""Workers started from Python: `palermo.start_worker(["shop.tasks"])`, as a process of their own."""

import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import IO, Any, Self

from palermo.config import Settings, environment
from palermo.core.patterns import QueueSelection
from palermo.core.prefetch import Prefetch
from palermo.errors import SettingInvalid
from palermo.worker.options import POOLS

#: Seconds that a worker gets to kill its slots and leave, once it has been told not to wait for them.
_GRACE = 10.0


class WorkerHandle:
    """A worker that this process started. As a context manager it is stopped at the end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The worker's parent process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def stop(self, timeout: float | None = None) -> int:
        """Let running jobs finish, for at most `timeout` seconds, and end the worker; its exit code.

        Without a timeout the worker's own shutdown timeout holds. Jobs that are cut off go
        back to their queue.
        """
        if self.alive:
            self._process.terminate()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it and its slots at once; the running jobs go back to their queue."""
        self._process.kill()
        return self._process.wait(_GRACE)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends by itself, as a burst does; its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<palermo worker pid={self.pid} {'alive' if self.alive else f'ended with {self._process.returncode}'}>"


def start_worker(
    modules: Iterable[str],
    *,
    queues: Iterable[str] | str | None = None,
    pool: str = "process",
    concurrency: int = 1,
    prefetch: int | str = 1,
    url: str | None = None,
    burst: bool = False,
    scheduler: bool = True,
    accept: Iterable[str] = (),
    shutdown_timeout: float | None = None,
    timeout: float | None = None,
    timeout_grace: float | None = None,
    max_jobs: int | None = None,
    max_memory: float | None = None,
    max_lifetime: float | None = None,
    pidfile: str | None = None,
    log: IO[bytes] | None = None,
    log_level: str | None = None,
    log_format: str | None = None,
    settings: Settings | None = None,
    **overrides: Any,
) -> WorkerHandle:
    """Start `palermo worker` on these modules, in a process of its own that imports them from the current directory.

    `settings`, or else those of this process with `url` and `overrides` above them, travel
    in the environment, where no listing of processes shows them. Returns at once; the worker
    writes its log to the file `log`, or else to this process's stderr; `log_format` is
    "text" or "json", `pool` "process", "thread" or "async", `prefetch` a number of jobs or "auto".
    Raises SettingInvalid, QueueNameInvalid.
    """
    if pool not in POOLS:
        raise SettingInvalid(f"pool is {pool!r}; it is one of {', '.join(POOLS)}.")
    chosen = Settings.load(url=url, **overrides) if settings is None else settings
    command = [sys.executable, "-m", "palermo", "worker", *modules, "--pool", pool, "-c", str(concurrency)]
    command += ["--prefetch", str(Prefetch.parse(str(prefetch)))]
    if queues is not None:
        command += ["-q", str(QueueSelection.parse(queues))]
    if burst:
        command.append("--burst")
    if not scheduler:
        command.append("--no-scheduler")
    for name in accept:
        command += ["--accept", name]
    limits = {
        "--shutdown-timeout": shutdown_timeout,
        "--timeout": timeout,
        "--timeout-grace": timeout_grace,
        "--max-jobs": max_jobs,
        "--max-memory": max_memory,
        "--max-lifetime": max_lifetime,
    }
    for flag, value in limits.items():
        if value is not None:
            command += [flag, str(value)]
    if pidfile is not None:
        command += ["--pidfile", pidfile]
    if log_level is not None:
        command += ["--log-level", log_level]
    if log_format is not None:
        command += ["--log-format", log_format]
    return WorkerHandle(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environment(chosen)))


def stop_worker(worker: WorkerHandle, timeout: float | None = None) -> int:
    """`worker.stop(timeout)`."""
    return worker.stop(timeout)
