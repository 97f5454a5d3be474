"""The supervisor of `palermo worker --workers N` and `--reload`, which starts workers, forwards signals, and restarts
workers.

Law: it doesn't connect to the broker and imports no user code. Each worker is complete, in its own process group, and
logs to the supervisor's stderr. If the supervisor is killed, Linux sends TERM to its workers.
"""

import ctypes
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from palermo import blocked_signals
from palermo.settings.environment import supervised_environment
from palermo.worker.process import set_title
from palermo.worker.signals import SIGNALS, Action, SignalRow, describe_status, listen_without_loop

log = logging.getLogger("palermo.worker")

#: Seconds between checks of the workers, and between checks of the code.
_LOOK_EVERY, _CODE_EVERY = 0.1, 0.5

#: Minimum seconds between starts of a worker that ends repeatedly.
_RESTART_EVERY = 2.0

#: Folders without user code.
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}

_PR_SET_PDEATHSIG = 1

_ROWS = {row.action: row for row in SIGNALS}


def supervise(workers: int, *, restarts: bool = True, watched: Path | None = None) -> int:
    """Run this command in several worker processes until they end, and return their highest exit code.

    A worker that ends unexpectedly with a code other than 0 is replaced, unless `restarts` is false. If a Python file
    in the folder `watched` changes, workers restart. Takes over the process, like run_worker.
    """
    return _Supervisor(workers, restarts, watched).run()


class _Place:
    """The process and state of one worker."""

    def __init__(self) -> None:
        #: The worker's process; None before its start, while it waits for a change of the code, and after its end.
        self.process: subprocess.Popen[bytes] | None = None
        #: The pipe to which the worker writes an empty line once it has imported its modules.
        self._pipe: IO[bytes] | None = None
        self._start_report: bytes | None = b""
        self.began = 0.0
        #: Whether it is waiting for a change of the code.
        self.waits = False
        #: Its exit code, once it has ended for good.
        self.code: int | None = None

    def start(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        reading, writing = os.pipe()
        self._pipe = os.fdopen(reading, "rb", buffering=0)
        os.set_blocking(reading, False)
        self._start_report, self.began, self.waits = b"", time.monotonic(), False
        # The worker inherits the mask, so a forwarded signal stays pending until the worker handles it.
        blocked_signals.block()
        try:
            self.process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                stdin=subprocess.DEVNULL,
                env=supervised_environment(writing),
                pass_fds=(writing,),
                process_group=0,
                preexec_fn=_stop_with_supervisor,
            )
        finally:
            blocked_signals.unblock()
            os.close(writing)

    @property
    def started(self) -> bool:
        """Whether the worker has imported its modules."""
        if self._pipe is not None and not self._start_report:
            self._start_report = self._pipe.read(1)
        return self._start_report == b"\n"

    def send(self, row: SignalRow) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(row.number)


class _Supervisor:
    def __init__(self, workers: int, restarts: bool, watched: Path | None) -> None:
        self._places = [_Place() for _ in range(workers)]
        self._restarts = restarts
        self._watched = watched
        self._stopping = False

    def run(self) -> int:
        set_title(f"palermo worker: supervises {len(self._places)}")
        listen_without_loop(self._pass_on)
        blocked_signals.unblock()
        # The others start once the first has imported the modules, so that an import error is reported only once.
        self._places[0].start()
        code_seen = dict(_code_in(self._watched)) if self._watched else {}
        checked = time.monotonic()
        while any(place.code is None for place in self._places):
            time.sleep(_LOOK_EVERY)
            for place in self._places:
                self._check(place)
            if self._watched and not self._stopping and time.monotonic() - checked >= _CODE_EVERY:
                code_now, checked = dict(_code_in(self._watched)), time.monotonic()
                if code_now != code_seen:
                    self._restart(sorted(path for path, _ in code_now.items() ^ code_seen.items())[0])
                    code_seen = code_now
        return max(place.code or 0 for place in self._places)

    def _pass_on(self, row: SignalRow) -> None:
        self._stopping = self._stopping or row.action.ends
        for place in self._places:
            place.send(row)

    def _restart(self, path: str) -> None:
        log.info("code changed, restarting path=%s", path)
        for place in self._places:
            if place.waits:
                place.start()
            else:
                place.send(_ROWS[Action.RENEW])

    def _check(self, place: _Place) -> None:
        process = place.process
        if process is None:
            if place.code is None and self._stopping:
                place.code = 0
            elif place.code is None and not place.waits and self._places[0].started:
                place.start()
            return
        status = process.poll()
        if status is None:
            return
        if self._stopping or status == 0:
            place.process, place.code = None, max(0, status)
        elif self._watched is not None:
            log.error("worker %s, waiting for the code to change pid=%d", describe_status(status), process.pid)
            place.process, place.waits = None, True
        elif not (place.started and self._restarts):
            place.process, place.code = None, max(1, status)
            if not place.started:
                # It has logged the reason, and the others would end in the same way.
                self._pass_on(_ROWS[Action.STOP])
        elif time.monotonic() - place.began >= _RESTART_EVERY:
            log.error("worker %s, starting another pid=%d", describe_status(status), process.pid)
            place.start()


def _code_in(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the Python files below a folder with their modification times, without virtual environments and similar
    folders.
    """
    for here, below, names in os.walk(folder):
        below[:] = [
            name
            for name in below
            if name not in _SKIPPED and not name.startswith(".") and not Path(here, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            if name.endswith(".py"):
                with suppress(OSError):  # just deleted
                    path = os.path.join(here, name)
                    yield path, os.stat(path).st_mtime_ns


def _stop_with_supervisor() -> None:
    """Let the kernel send TERM to this process when the supervisor ends for any reason. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(_ROWS[Action.STOP].number), 0, 0, 0)
