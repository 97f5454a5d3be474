"""Shell completion for the names of queues, jobs and workers on the broker.

Law: completion prints only names, changes nothing, and gives up silently after a few seconds.
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

#: Seconds to wait for the broker.
_PATIENCE = 2.0

#: Number of failed jobs whose names are read.
_FAILED = 100

#: The function that click calls with the beginning of a word.
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def complete(names: Callable[["Inspector", "Settings"], Iterable[str]]) -> Complete:
    """Return a completion function for these names. It completes nothing if the broker doesn't answer."""

    def found(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from palermo.client.client import Client
        from palermo.errors import PalermoError
        from palermo.inspector.inspector import Inspector

        begun, _, last = incomplete.rpartition(",")  # -q high,lo
        lead = begun + "," if begun else ""
        known: list[str] = []
        # The user's modules may print when they are imported.
        with suppress(PalermoError, OSError), redirect_stdout(io.StringIO()):
            settings = ctx.ensure_object(Context).settings(publish_timeout=_PATIENCE)
            with Client(settings, creates=False) as client:
                known = sorted(set(names(Inspector(client), settings)))
        return [CompletionItem(lead + name) for name in known if name.startswith(last)]

    return found


def _jobs(inspector: "Inspector", settings: "Settings") -> Iterable[str]:
    """Return the names of jobs that are declared in the settings' modules, running, failed or recurring."""
    from palermo.jobs import registry
    from palermo.jobs.modules import import_modules

    import_modules(settings.imports)
    yield from registry.names()
    for worker in inspector.workers.list():
        yield from (job["job"] for job in worker["jobs"])
    for recurring in inspector.recurring.list():
        yield recurring["job"]
    yield from (row["job"] for row in inspector.failed.list(limit=_FAILED, newest=True, count=False) if row["job"])


complete_queue = complete(lambda inspector, _: (row["name"] for row in inspector.queues.list()))
complete_worker = complete(lambda inspector, _: (row["id"] for row in inspector.workers.list()))
complete_recurring = complete(lambda inspector, _: (row["name"] for row in inspector.recurring.list()))
complete_job = complete(_jobs)
