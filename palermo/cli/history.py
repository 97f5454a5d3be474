"""`palermo history`, `audit` and `stats`: finished jobs, operators' actions and counts from the journal."""

import json
from collections.abc import Sequence
from typing import Any

import click

from palermo.cli.command_group import Context, misuse, note
from palermo.cli.job_ids import known_ids
from palermo.cli.listings import print_page
from palermo.cli.options import (
    filter_options,
    limit_option,
    page_option,
    parse_since,
    query_options,
    wanted_jobs,
)
from palermo.cli.output import Column, field, print_facts, print_rows, printed_json, progress
from palermo.contract import clock
from palermo.contract.rows import Row
from palermo.core.journal_records import RecordKind
from palermo.core.text import duration, safe
from palermo.views.filter import AuditFilter, filter_of

#: The fields of a journal record that are shown without names. Others are shown as `name=value`.
_IN_COLUMNS = ("kind", "at", "job", "queue", "worker", "error", "text", "attempt")

#: The numbers shown by `palermo stats`, with titles.
_NUMBERS = (
    ("Enqueued", "enqueued"),
    ("Processed", "processed"),
    ("Succeeded", "succeeded"),
    ("Failed", "failed"),
    ("Retried", "retried"),
    ("Snoozed", "snoozed"),
    ("Discarded", "discarded"),
    ("Cancelled", "cancelled"),
    ("Requeued", "released"),
)

_TIMES = ("min", "mean", "p50", "p90", "p95", "p99", "max")


@click.command()
@click.argument("id", required=False)
@query_options
@filter_options("since", "until", "state", "queue", "job", "error", "worker", "longer", "shorter")
@page_option
@limit_option
@click.pass_obj
def history(context: Context, /, id: str | None, limit: int, page: int, **filters: Any) -> None:
    """List finished jobs, newest first. With ID, show the timeline of that job, oldest first.

    The journal setting controls which jobs are recorded: "failures" records only failed jobs, and "all" records every
    job.
    """
    wanted = wanted_jobs(**filters)
    if id is not None:
        if any(value is not None for value in filters.values()):
            raise misuse("filters apply to the list, not to a single job")
        (whole,) = known_ids(context, [id])
        with progress("read", of="batches of the journal") as show:
            rows = context.inspector().history.timeline(whole, progress=show)
        steps: list[Column] = [
            ("At", lambda row: row["at"]),
            *(
                (heading, lambda row, nth=nth: _step(row)[nth])
                for nth, heading in enumerate(("Event", "Where", "Details"))
            ),
        ]
        print_rows(rows, steps, none="nothing.")
        if all(row["kind"] == RecordKind.ACTION for row in rows):
            note(f"the journal has no record of job {whole} itself, only the actions of operators on that id.")
        return
    with progress("read", of="batches of the journal") as show:
        listing = context.inspector().history.list(wanted, offset=(page - 1) * limit, limit=limit, progress=show)
    columns: list[Column] = [
        field("Id"),
        field("State"),
        field("Queue"),
        field("Job"),
        ("Ended", lambda row: row["finished_at"]),
        ("Waited", lambda row: _seconds(row["wait"])),
        ("Ran", lambda row: _seconds(row["took"])),
        ("Why", lambda row: f"{row['error']['class']}: {row['error']['message']}" if row["error"] else row["reason"]),
    ]
    print_page(listing, columns, "finished jobs in the journal", page=page, limit=limit, filter=wanted)


@click.command()
@query_options
@filter_options("since", "until", "queue", "action", "by", of_actions=True)
@page_option
@limit_option
@click.pass_obj
def audit(context: Context, /, limit: int, page: int, **filters: Any) -> None:
    """List the actions of operators on queues, jobs and workers, newest first."""
    wanted = filter_of(filters, clock.now(), AuditFilter)
    with progress("read", of="batches of the journal") as show:
        listing = context.inspector().history.audit(wanted, offset=(page - 1) * limit, limit=limit, progress=show)
    columns: list[Column] = [
        ("At", lambda row: row["at"]),
        ("Who", lambda row: row["by"]),
        ("Via", lambda row: row["source"]),
        field("Action"),
        field("Outcome"),
        field("Queue"),
        ("Jobs", lambda row: row["count"]),
        ("What", lambda row: row["what"] or row["ids"][:3]),
    ]
    print_page(listing, columns, "actions in the journal", page=page, limit=limit, filter=wanted, what="action")


def _step(row: Row) -> tuple[str, str, str]:
    """Return what happened, where it happened, and the other fields of the record, as one line each."""
    if row["kind"] == RecordKind.ACTION:
        return row["action"], f"{row['by'] or 'unknown'} via {row['source'] or '?'}", row["what"] or ""
    error = row["error"]
    summary = f"{error['class']}: {error['message']}" if error else row["text"] or ""
    more = {name: value for name, value in row.items() if name not in _IN_COLUMNS and value is not None}
    named = (
        f"{name}={value if isinstance(value, str | int | float) else json.dumps(value)}" for name, value in more.items()
    )
    return row["kind"], row["worker"] or row["queue"], " ".join(filter(None, (summary, *named)))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s" if value < 10 else f"{value:,.0f} s"


# -- stats


@click.command()
@click.option(
    "--since",
    type=parse_since,
    metavar="WHEN",
    help="Start of the period: 2h (ago) or 2026-12-01T09:00Z; by default 24 hours ago.",
)
@query_options
@click.pass_obj
def stats(context: Context, /, since: float | None) -> None:
    """Show how many jobs were enqueued, processed and failed, and their wait and run times, by queue, job and worker.

    The counts come from the journal, which records them at every level except off.
    A failed run counts even if it is retried.
    """
    with progress("read", of="batches of the journal") as show:
        report = context.inspector().history.statistics(since, progress=show)
    if printed_json(report):
        return
    _print_report(report)


def _print_report(report: Row) -> None:
    print_facts(
        (
            ("Since", report["since"]),
            ("Known since", report["known_since"] or "nothing was counted in that time"),
            *((title, f"{report[name]:,}") for title, name in _NUMBERS if report[name] or name == "processed"),
            ("Jobs a second", report["rate"]),
            ("Waited", _times_line(report["wait"])),
            ("Ran", _times_line(report["run"])),
            ("Releases", ", ".join(f"{each['release']} at {each['at']}" for each in report["deploys"]) or None),
        )
    )
    if report["lost"]:
        note(f"{report['lost']:,} records were lost while the journal was unavailable; the counts are complete.")
    tables: Sequence[tuple[str, str, list[Column]]] = (
        ("queues", "name", [field("Pending"), field("Enqueued")]),
        ("jobs", "name", [field("Enqueued")]),
        ("workers", "id", [("State", lambda row: row["state"] or "ended")]),
    )
    for name, key, own in tables:
        if report[name]:
            click.echo()
            print_rows(report[name], [_name(name, key), *own, *_REPORT], none="")


def _name(table: str, key: str) -> Column:
    return table.capitalize().removesuffix("s"), lambda row: "(others)" if row[key] is None else safe(row[key])


_REPORT: Sequence[Column] = (
    field("Processed"),
    field("Failed"),
    ("Waited p50", lambda row: _time(row["wait"], "p50")),
    ("p95", lambda row: _time(row["wait"], "p95")),
    ("Ran p50", lambda row: _time(row["run"], "p50")),
    ("p95", lambda row: _time(row["run"], "p95")),
    ("p99", lambda row: _time(row["run"], "p99")),
    ("max", lambda row: _time(row["run"], "max")),
)


def _times_line(times: Row | None) -> str | None:
    return None if times is None else ", ".join(f"{name} {_time(times, name)}" for name in _TIMES)


def _time(times: Row | None, name: str) -> str:
    return "" if times is None else duration(times[name])
