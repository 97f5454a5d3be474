"""The options that a worker is started with, and the error of a worker that cannot start."""

from msgspec import Struct, field

from palermo.contract.serialization import Accept
from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError, SettingInvalid, UsageError
from palermo.settings.settings import Settings
from palermo.worker.limits import Limits
from palermo.worker.signals import TERM_TIMEOUT

#: The kinds of pool; docs/guides/pools.md says what each can do.
POOLS = ("process", "thread", "async")


class WorkerFailed(PalermoError):
    """The worker cannot start: its modules cannot be imported, or give it nothing to do. The text is one line."""


class WorkerMisused(WorkerFailed, UsageError):
    """The worker cannot start: an option names something that neither Palermo nor its modules bring."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """Everything that decides how a worker runs. Raises SettingInvalid for an impossible value."""

    settings: Settings
    #: The modules that hold the user's jobs, by their import names; the current directory is importable.
    modules: tuple[str, ...]
    #: None for every queue that the modules' jobs name.
    queues: QueueSelection | None = None
    #: What a slot is: a process, a thread of one shared process, or a coroutine in it.
    pool: str = "process"
    #: How many slots the worker has; each runs one job at a time.
    concurrency: int = 1
    #: The number of jobs that a slot may hold: the one that it runs, and those that wait for it to end.
    prefetch: int = 1
    #: Whether to end with code 0 once all queues are empty, and with 3 if the broker cannot be reached for 30 s.
    burst: bool = False
    #: Whether a burst waits for jobs that it has put aside because of a limit or a rate.
    burst_waits_for_limits: bool = True
    accept: Accept = field(default_factory=Accept.default)
    #: Seconds that running jobs get after TERM or INT (25 if None) and after QUIT (without end if None).
    shutdown_timeout: float | None = None
    #: Seconds that a job gets after JobTerminated was raised in it, before its process is killed.
    term_timeout: float = TERM_TIMEOUT
    #: Whether the functions that jobs gave to atexit run when the process of the jobs ends.
    run_atexit: bool = False
    limits: Limits = field(default_factory=Limits)
    #: Whether TERM and INT mean what they mean to a Resque worker.
    resque_signals: bool = False
    #: Whether it may be the leader, which brings delayed jobs to their queues when they are due.
    scheduler: bool = True
    #: The path of a file that holds the parent's pid while the worker lives.
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
