"""What a worker is told when it starts."""

from dataclasses import field

from palermo.config import Settings
from palermo.core.patterns import QueueSelection
from palermo.core.prefetch import ONE, Prefetch
from palermo.core.values import dataclass
from palermo.errors import SettingInvalid
from palermo.serialization import Accept
from palermo.worker.limits import Limits

#: The kinds of pool; docs/pools.md says what each can do.
POOLS = ("process", "thread", "async")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Everything that decides how a worker runs; raises SettingInvalid for what makes no sense."""

    settings: Settings
    #: The modules that hold the user's jobs, as `import` names them; the current directory is importable.
    modules: tuple[str, ...]
    #: None for every queue that the modules' jobs name.
    queues: QueueSelection | None = None
    #: What a slot is: a process, a thread of one shared process, or a coroutine in it.
    pool: str = "process"
    #: How many slots, each of which runs one job at a time.
    concurrency: int = 1
    #: How many jobs a slot may hold while they are short: the one that it runs, and those that wait behind it.
    prefetch: Prefetch = ONE
    #: Leave with code 0 once all queues are empty, and with 3 if the broker cannot be reached for 30 s.
    burst: bool = False
    accept: Accept = field(default_factory=Accept.default)
    #: Seconds that running jobs get after TERM or INT (25 if None) and after QUIT (as long as they need if None).
    shutdown_timeout: float | None = None
    limits: Limits = field(default_factory=Limits)
    #: Whether TERM and INT mean what they mean to a Resque worker.
    resque_signals: bool = False
    #: Whether it brings delayed jobs to their queues when they are due, if no other worker does.
    scheduler: bool = True
    #: A file that holds the parent's pid while the worker lives.
    pidfile: str | None = None

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise SettingInvalid(f"pool is {self.pool!r}; it is one of {', '.join(POOLS)}.")
        if self.concurrency < 1:
            raise SettingInvalid(f"concurrency is {self.concurrency}; a worker needs at least one slot: -c 1.")
        if not self.modules:
            raise SettingInvalid(
                "no module named: a worker needs the modules that hold its jobs, palermo worker shop.tasks."
            )
        if self.shutdown_timeout is not None and not 0 <= self.shutdown_timeout < float("inf"):
            raise SettingInvalid(f"shutdown timeout is {self.shutdown_timeout}; it is a number of seconds, 0 or more.")
