"""Starts workers from Python, each in its own process: `palermo.start_worker(["shop.tasks"])`."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import IO, Any, Literal, Self, Unpack

from msgspec.structs import replace

from palermo.client.client import chosen_settings
from palermo.core.queue_selection import QueueSelection
from palermo.core.times import Duration, in_seconds
from palermo.errors import SettingInvalid
from palermo.settings.environment import START_PIPE
from palermo.settings.settings import Settings, environment
from palermo.settings.table import SettingArguments
from palermo.worker.options import POOLS, WorkerFailed

#: Seconds for a killed worker to end.
_GRACE = 10.0


class WorkerHandle:
    """A worker started by this process. As a context manager it stops the worker at the end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Pid of the worker's parent process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker has imported its modules and hasn't ended."""
        return self._process.poll() is None

    def stop(self, timeout: Duration | None = None) -> int:
        """Let running jobs finish, end the worker, and return its exit code.

        `timeout` is in seconds or a timedelta; by default the worker's own shutdown timeout applies. Jobs that are
        interrupted return to their queue.
        """
        if self.alive:
            self._process.terminate()
        try:
            return self._process.wait(in_seconds(timeout))
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the worker and its slots immediately, and return the exit code. Running jobs return to their queue."""
        self._process.kill()
        return self._process.wait(_GRACE)

    def wait(self, timeout: Duration | None = None) -> int:
        """Wait until the worker ends by itself, as a burst does, and return its exit code.

        Raises subprocess.TimeoutExpired.
        """
        return self._process.wait(in_seconds(timeout))

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
    pool: Literal["process", "thread", "async"] = "process",
    concurrency: int | Literal["auto"] = 1,
    prefetch: int = 1,
    url: str | None = None,
    burst: bool = False,
    scheduler: bool = True,
    accept: Iterable[str] = (),
    shutdown_timeout: Duration | None = None,
    term_timeout: Duration | None = None,
    run_atexit: bool = False,
    timeout: Duration | None = None,
    timeout_grace: Duration | None = None,
    max_jobs: int | None = None,
    max_memory: float | None = None,
    max_lifetime: Duration | None = None,
    pidfile: str | None = None,
    log: IO[bytes] | None = None,
    log_level: Literal["debug", "info", "warning", "error"] | None = None,
    log_format: Literal["text", "json"] | None = None,
    settings: Settings | None = None,
    **overrides: Unpack[SettingArguments],
) -> WorkerHandle:
    """Start `palermo worker` with these modules, in a process that imports them from the current directory.

    Returns once the modules are imported, without waiting for the connection to the broker. The worker gets `settings`,
    or by default the settings chosen with `palermo.connect`, overridden by `url` and `overrides`. They are passed in
    environment variables, which process listings don't show. Timeouts and `max_lifetime` are in seconds or timedeltas;
    `max_memory` is in megabytes. The worker logs to the file `log`, by default to this process's stderr. `log_format`
    is "text" or "json"; `pool` is "process", "thread" or "async". Raises SettingInvalid, QueueNameInvalid, and
    WorkerFailed if a module can't be imported.
    """
    if pool not in POOLS:
        raise SettingInvalid(f"pool is {pool!r}; it must be one of {', '.join(POOLS)}.")
    chosen = _settings(url, overrides) if settings is None else settings
    if chosen.address.path == ":memory:":
        raise SettingInvalid(
            f"{chosen.address} is this process's memory, which other processes cannot see. Name a file:"
            " sqlite:////tmp/jobs.db."
        )
    command = [sys.executable, "-m", "palermo", "worker", *modules, "--pool", pool]
    command += ["-c", str(concurrency), "--prefetch", str(prefetch)]
    flags = {"--burst": burst, "--no-scheduler": not scheduler, "--run-atexit": run_atexit}
    command += [flag for flag, wanted in flags.items() if wanted]
    for name in accept:
        command += ["--accept", name]
    values = {
        "-q": None if queues is None else QueueSelection.parse(queues),
        "--shutdown-timeout": in_seconds(shutdown_timeout),
        "--term-timeout": in_seconds(term_timeout),
        "--timeout": in_seconds(timeout),
        "--timeout-grace": in_seconds(timeout_grace),
        "--max-jobs": max_jobs,
        "--max-memory": max_memory,
        "--max-lifetime": in_seconds(max_lifetime),
        "--pidfile": pidfile,
        "--log-level": log_level,
        "--log-format": log_format,
    }
    for flag, value in values.items():
        if value is not None:
            command += [flag, str(value)]
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**environment(chosen), START_PIPE: str(writing)},
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        try:
            line = pipe.readline()
        except BaseException:  # Ctrl-C: the caller gets no handle to stop it with
            process.kill()
            process.wait()
            raise
    if line != b"\n":
        code = process.wait()
        why = line.decode(errors="replace").strip()
        raise WorkerFailed(why or f"the worker ended with exit code {code} before it was ready; see its log.")
    return WorkerHandle(process)


def _settings(url: str | None, overrides: Mapping[str, Any]) -> Settings:
    loaded, chosen = Settings.load(url=url, **overrides), chosen_settings()
    if chosen is None:
        return loaded
    given = [name for name, value in {"url": url, **overrides}.items() if value is not None]
    return replace(chosen, **{name: getattr(loaded, name) for name in given})
