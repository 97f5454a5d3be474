"""Completes names in a shell: queues, jobs and workers, as the broker knows them.

Law: a completion prints nothing but names, changes nothing, and gives up in silence after some seconds.
"""

import io
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING

import click

from palermo.cli.command_group import Context

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from palermo.inspector.inspector import Inspector
    from palermo.settings.settings import Settings

#: Seconds that a broker gets to answer.
_PATIENCE = 2.0

#: How many failed jobs are looked at for names.
_FAILED = 100

#: A function that click calls for the beginning of a word.
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def complete(names: Callable[["Inspector", "Settings"], Iterable[str]]) -> Complete:
    """The completion by these names; no names if the broker does not give them."""

    def found(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from palermo.client.client import Client
        from palermo.errors import PalermoError
        from palermo.inspector.inspector import Inspector

        begun, _, last = incomplete.rpartition(",")  # -q high,lo
        lead = begun + "," if begun else ""
        known: list[str] = []
        # The user's modules may print while they are imported.
        with suppress(PalermoError, OSError), redirect_stdout(io.StringIO()):
            settings = ctx.ensure_object(Context).settings(publish_timeout=_PATIENCE)
            with Client(settings, creates=False) as client:
                known = sorted(set(names(Inspector(client), settings)))
        return [CompletionItem(lead + name) for name in known if name.startswith(last)]

    return found


def _queues(inspector: "Inspector", settings: "Settings") -> Iterable[str]:
    return (row["name"] for row in inspector.queues.list())


def _workers(inspector: "Inspector", settings: "Settings") -> Iterable[str]:
    return (row["id"] for row in inspector.workers.list())


def _recurring(inspector: "Inspector", settings: "Settings") -> Iterable[str]:
    return (row["name"] for row in inspector.recurring.list())


def _jobs(inspector: "Inspector", settings: "Settings") -> Iterable[str]:
    """The jobs that the modules of the settings declare; and those that run, have failed or recur."""
    from palermo.jobs import registry
    from palermo.jobs.user_modules import import_modules

    import_modules(settings.imports)
    yield from registry.names()
    for row in (*inspector.workers.list(), *inspector.recurring.list()):
        yield from (job["job"] for job in row["jobs"]) if "jobs" in row else [row["job"]]
    yield from (row["job"] for row in inspector.failed.list(limit=_FAILED, newest=True, count=False) if row["job"])


complete_queue, complete_worker = complete(_queues), complete(_workers)
complete_recurring, complete_job = complete(_recurring), complete(_jobs)
