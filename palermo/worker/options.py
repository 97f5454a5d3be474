"""The options of a worker, and the errors of a worker that can't start."""

from msgspec import Struct, field

from palermo.contract.serialization import Accept
from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError, UsageError
from palermo.settings.settings import Settings
from palermo.worker.limits import Limits
from palermo.worker.signals import TERM_TIMEOUT

#: The kinds of pool. See docs/guides/pools.md.
POOLS = ("process", "thread", "async")


class WorkerFailed(PalermoError):
    """The worker can't start because its modules can't be imported or name no queue. The text is one line."""


class WorkerMisused(WorkerFailed, UsageError):
    """The worker can't start because an option names something that doesn't exist."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The options of a worker, which `palermo worker` has checked."""

    settings: Settings
    #: The modules with the user's jobs. The current directory is importable.
    modules: tuple[str, ...]
    #: None means all queues named by the modules' jobs.
    queues: QueueSelection | None = None
    #: The kind of pool: a slot is a process, or a thread or coroutine in a shared process.
    pool: str = "process"
    #: Number of slots, each for one job at a time.
    concurrency: int = 1
    #: Number of jobs that a slot may hold, including the running one.
    prefetch: int = 1
    #: Whether to exit with code 0 once all queues are empty, or with 3 if the broker is unreachable for 30 s.
    burst: bool = False
    #: Whether a burst waits for jobs deferred by a limit or a rate.
    burst_waits_for_limits: bool = True
    accept: Accept = field(default_factory=Accept.default)
    #: Seconds for running jobs after TERM or INT (None: 25) and after QUIT (None: no limit).
    shutdown_timeout: float | None = None
    #: Seconds from JobTerminated in a job until its process is killed.
    term_timeout: float = TERM_TIMEOUT
    #: Whether the jobs' atexit functions run when their process ends.
    run_atexit: bool = False
    limits: Limits = field(default_factory=Limits)
    #: Whether TERM and INT have the same meaning as for a Resque worker.
    resque_signals: bool = False
    #: Whether it may become the leader, which moves delayed jobs to their queues when they are due.
    scheduler: bool = True
    #: Path of a file that contains the parent's pid while the worker runs.
    pidfile: str | None = None
