"""`palermo stats`: prints the counts in the journal as one report."""

from collections.abc import Sequence

import click

from palermo.cli.command_group import Context
from palermo.cli.options import broker_options, json_option, parse_since
from palermo.cli.output import Column, field, note, print_facts, print_json, print_rows, progress
from palermo.contract.rows import Row
from palermo.core.text import duration, safe

#: The numbers of the summary, each with its title.
_NUMBERS = (
    ("Enqueued", "enqueued"),
    ("Processed", "processed"),
    ("Succeeded", "succeeded"),
    ("Failed", "failed"),
    ("Tried again", "retried"),
    ("Snoozed", "snoozed"),
    ("Discarded", "discarded"),
    ("Cancelled", "cancelled"),
    ("Given back", "released"),
)

_TIMES = ("min", "mean", "p50", "p90", "p95", "p99", "max")


@click.command()
@click.option(
    "--since",
    type=parse_since,
    metavar="WHEN",
    help="From when on: 2h (ago) or 2026-12-01T09:00Z; the last 24 hours unless given.",
)
@broker_options
@json_option
@click.pass_obj
def stats(context: Context, /, since: float | None, as_json: bool) -> None:
    """Say how many jobs were enqueued, processed and failed, how long they waited and ran: by queue, job and worker.

    Read from the journal, where workers count at every level but off. Failed counts runs, tried again or not.
    """
    with progress("read", of="batches of the journal") as show:
        report = context.inspector().statistics(since, progress=show)
    if as_json:
        print_json(report)
        return
    _print(report)


def _print(report: Row) -> None:
    print_facts(
        (
            ("Since", report["since"]),
            ("Known since", report["known_since"] or "nothing was counted in that time"),
            *((title, f"{report[name]:,}") for title, name in _NUMBERS if report[name] or name == "processed"),
            ("Jobs a second", report["rate"]),
            ("Waited", _line(report["wait"])),
            ("Ran", _line(report["run"])),
            ("Releases", ", ".join(f"{each['release']} at {each['at']}" for each in report["deploys"]) or None),
        )
    )
    if report["lost"]:
        note(f"{report['lost']:,} records were left out while the journal was away; what workers counted is whole.")
    tables: Sequence[tuple[str, str, list[Column]]] = (
        ("queues", "name", [field("Pending"), field("Enqueued")]),
        ("jobs", "name", [field("Enqueued")]),
        ("workers", "id", [("State", lambda row: row["state"] or "ended")]),
    )
    for name, key, own in tables:
        if report[name]:
            click.echo()
            print_rows(report[name], [_name(name, key), *own, *_columns()], as_json=False, none="")


def _name(table: str, key: str) -> Column:
    return table.capitalize().removesuffix("s"), lambda row: "(others)" if row[key] is None else safe(row[key])


def _columns() -> list[Column]:
    return [
        field("Processed"),
        field("Failed"),
        ("Waited p50", lambda row: _time(row["wait"], "p50")),
        ("p95", lambda row: _time(row["wait"], "p95")),
        ("Ran p50", lambda row: _time(row["run"], "p50")),
        ("p95", lambda row: _time(row["run"], "p95")),
        ("p99", lambda row: _time(row["run"], "p99")),
        ("max", lambda row: _time(row["run"], "max")),
    ]


def _line(times: Row | None) -> str | None:
    return None if times is None else ", ".join(f"{name} {_time(times, name)}" for name in _TIMES)


def _time(times: Row | None, name: str) -> str:
    return "" if times is None else duration(times[name])
