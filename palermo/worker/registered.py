"""The registrations of the user's modules that the worker's parent needs: jobs, hooks and subscriptions."""

from collections.abc import Mapping, Sequence

from msgspec import field

from palermo.contract.events import Subscription
from palermo.contract.recurring_entries import RecurringEntry
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.plain import PlainWithMessages


class Registered(PlainWithMessages, frozen=True, kw_only=True):
    """The jobs, hooks and subscriptions registered by the user's modules."""

    jobs: tuple[str, ...]
    #: The names or patterns of the queues to serve.
    queues: tuple[str, ...]
    #: The kinds of worker hooks that are registered.
    hooks: frozenset[str]
    #: The timeout in seconds of each job, for messages that have none.
    timeouts: Mapping[str, float] = field(default_factory=dict)
    #: The seconds of `rerun_after` of each job, for messages that have none.
    reruns: Mapping[str, float] = field(default_factory=dict)
    #: The queues for which a job with a priority is declared.
    prioritized: frozenset[str] = frozenset()
    #: For each batch job, the maximum number of jobs per call, and the seconds that the first one waits for more.
    batches: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    #: For each queue, the job that takes messages without a job name.
    defaults: Mapping[str, str] = field(default_factory=dict)
    #: The jobs declared as unique, for programs that enqueue them without their code.
    unique: tuple[UniqueJob, ...] = ()
    #: For each job, its parameter names, if the journal hides one of them.
    parameters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The recurring jobs, as stored on the broker.
    recurring: tuple[RecurringEntry, ...] = ()
    #: The modules that may have declared recurring jobs.
    modules: tuple[str, ...] = ()
    #: The groups that subscribe to events, each with whether it starts with the stored events.
    subscriptions: tuple[tuple[Subscription, bool], ...] = ()
