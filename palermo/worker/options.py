"""A worker's options, and the errors of a worker that cannot start."""

from msgspec import Struct, field

from palermo.contract.serialization import Accept
from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError, SettingInvalid, UsageError
from palermo.settings.settings import Settings
from palermo.worker.limits import Limits
from palermo.worker.signals import TERM_TIMEOUT

#: The kinds of pool, described in docs/guides/pools.md.
POOLS = ("process", "thread", "async")


class WorkerFailed(PalermoError):
    """The worker cannot start: its modules cannot be imported, or have no queue to serve. The text is one line."""


class WorkerMisused(WorkerFailed, UsageError):
    """The worker cannot start: an option names something that neither Palermo nor the modules define."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """All options that decide how a worker runs. Raises SettingInvalid for an invalid value."""

    settings: Settings
    #: The modules with the user's jobs, by import name; the current directory is importable.
    modules: tuple[str, ...]
    #: None for every queue that the modules' jobs name.
    queues: QueueSelection | None = None
    #: What a slot is: a process, a thread of one shared process, or a coroutine in it.
    pool: str = "process"
    #: Number of slots; each runs one job at a time.
    concurrency: int = 1
    #: Number of jobs that a slot may hold: the running one, and waiting ones.
    prefetch: int = 1
    #: Whether to exit with code 0 once all queues are empty, or with 3 if the broker is unreachable for 30 s.
    burst: bool = False
    #: Whether a burst waits for jobs that were deferred because of a limit or a rate.
    burst_waits_for_limits: bool = True
    accept: Accept = field(default_factory=Accept.default)
    #: Seconds that running jobs get after TERM or INT (None: 25) and after QUIT (None: no limit).
    shutdown_timeout: float | None = None
    #: Seconds between JobTerminated in a job and the kill of its process.
    term_timeout: float = TERM_TIMEOUT
    #: Whether the atexit functions of jobs run when their process ends.
    run_atexit: bool = False
    limits: Limits = field(default_factory=Limits)
    #: Whether TERM and INT have the meaning that they have for a Resque worker.
    resque_signals: bool = False
    #: Whether it may become the leader, which moves delayed jobs to their queues when they are due.
    scheduler: bool = True
    #: The path of a file that contains the parent's pid while the worker runs.
    pidfile: str | None = None

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise SettingInvalid(f"pool is {self.pool!r}; it must be one of {', '.join(POOLS)}.")
        if self.concurrency < 1:
            raise SettingInvalid(f"concurrency is {self.concurrency}; a worker needs at least one slot: -c 1.")
        if not self.modules:
            raise SettingInvalid(
                "no module given: a worker needs the modules with its jobs, palermo worker shop.tasks."
            )
        if not 0 <= self.term_timeout < float("inf"):
            raise SettingInvalid(f"term timeout is {self.term_timeout}; it must be a number of seconds, 0 or more.")
        if self.shutdown_timeout is not None and not 0 <= self.shutdown_timeout < float("inf"):
            raise SettingInvalid(
                f"shutdown timeout is {self.shutdown_timeout}; it must be a number of seconds, 0 or more."
            )
