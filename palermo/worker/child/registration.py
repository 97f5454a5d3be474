"""Collects the jobs, hooks and subscriptions registered in this process, for the worker's parent."""

from collections.abc import Sequence

from palermo.client import prepare_recurring, subscribe
from palermo.client.client import Client
from palermo.jobs import hooks
from palermo.jobs.job_registry import Registry, declaring
from palermo.jobs.redaction import is_hidden
from palermo.settings.settings import Settings
from palermo.worker.registered import Registered


def queues(jobs: Registry, settings: Settings) -> tuple[str, ...]:
    """Return the queues of these jobs and of their event groups, sorted."""
    groups = subscribe.subscriptions(jobs, settings.exchange, settings.prefix)
    return tuple(sorted({*jobs.queues(settings.default_queue), *(one.queue for one, _ in groups)}))


def collect(jobs: Registry, client: Client, *, recurring: Sequence[str] = ()) -> Registered:
    """Return everything registered in this process, including the recurring jobs of the modules in `recurring`.

    Raises OptionInvalid if two recurring jobs have the same name.
    """
    settings = client.settings
    return Registered(
        jobs=jobs.names(),
        queues=queues(jobs, settings),
        hooks=frozenset(name for name in hooks.WORKER_HOOKS if hooks.registered.of(name)),
        timeouts=declaring(jobs, "timeout"),
        reruns=declaring(jobs, "rerun_after"),
        prioritized=frozenset(jobs.get(name).queue or settings.default_queue for name in declaring(jobs, "priority")),
        batches={name: (size, jobs.get(name).batch_wait or 0.0) for name, size in declaring(jobs, "batch").items()},
        defaults=jobs.defaults(settings.default_queue),
        unique=tuple(one for name in jobs.names() if (one := jobs.get(name).as_unique) is not None),
        parameters={name: names for name in jobs.names() if (names := _hidden_among(jobs, name, settings))},
        recurring=tuple(prepare_recurring.declarations(client)) if recurring else (),
        modules=tuple(prepare_recurring.loaded(recurring)) if recurring else (),
        subscriptions=tuple(subscribe.subscriptions(jobs, settings.exchange, settings.prefix)),
    )


def _hidden_among(jobs: Registry, job: str, settings: Settings) -> list[str]:
    """Return the names of a job's parameters, or [] if none of them is hidden."""
    names = list(jobs.get(job).signature.parameters)
    return names if any(is_hidden(name, settings.web_redact) for name in names) else []
