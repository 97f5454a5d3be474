"""`palermo status` and `palermo wait`: show the state of jobs, or wait until they end."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from palermo.cli.command_group import FAILED, NOT_FOUND, Context, exit_code, note
from palermo.cli.job_ids import known_ids
from palermo.cli.options import parse_duration, query_options
from palermo.cli.output import is_terminal, print_facts, print_json, printed_json, wants_json
from palermo.contract.clock import wall_clock
from palermo.contract.rows import Row
from palermo.core.journal_records import Record, RecordKind
from palermo.core.text import one_line, safe, shorter
from palermo.errors import PalermoError

#: Minimum number of seconds between two plain lines of a job's progress.
_EVERY = 2.0

#: Maximum seconds that `status` searches the journal for a job.
_PATIENCE = 60.0

ShowProgress = Callable[[Record], None]


@click.command()
@click.argument("id")
@query_options
@click.pass_obj
def status(context: Context, /, id: str) -> None:
    """Show the state and details of the job ID.

    The state is pending, scheduled, working, retrying, failed, done, discarded, cancelled or unknown.
    """
    (whole,) = known_ids(context, [id])
    row = context.inspector().jobs.status(whole, _PATIENCE)
    context.shown = row["reason"]
    if not printed_json(row):
        print_facts((name.replace("_", " "), value) for name, value in _shown_row(row).items())
    if row["state"] == "unknown":
        raise click.exceptions.Exit(NOT_FOUND)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--timeout", type=parse_duration, metavar="TIME", help="Maximum time to wait: 30s, 5m.")
@query_options
@click.pass_obj
def wait(context: Context, /, ids: tuple[str, ...], timeout: float | None) -> None:
    """Wait until the jobs end, and print their states and kept results.

    Their progress and log lines are printed on stderr. Exit code 0: all are done; 1: a job failed, was discarded or
    cancelled, or has not ended in time; 4: a job is unknown.
    """
    from palermo.client import results
    from palermo.client.status import status_at_end

    client = context.client()
    jobs = [client.job_by_id(id) for id in dict.fromkeys(known_ids(context, ids))]
    with _showing() as show:
        ended = client.watch(results.ends(client, jobs, timeout, show))
    rows: list[Row] = []
    codes = {0}
    for job, found in zip(jobs, ended, strict=True):
        if isinstance(found, PalermoError):
            codes.add(exit_code(found))
            note(f"palermo: {type(found).__name__}: {found}")
            continue
        result = {"result": results.result_as_json(client, found), "refused": found.get("refused")}
        row = {**status_at_end(found).row(), **result}
        rows.append(row)
        codes.add(0 if row["state"] == "done" else FAILED)
        if not wants_json():
            click.echo(f"{safe(job.id)}: {_sentence(row)}")
    if wants_json():
        print_json(rows)
    raise click.exceptions.Exit(max(codes))


#: The status fields whose labels differ from their names.
_NAMES = {"preview": "arguments", "next_id": "next job of its key", "closed_until": "its key is closed until"}


def _shown_row(row: Row) -> Row:
    known = {
        _NAMES.get(name, name): value
        for name, value in row.items()
        if value not in (None, "") and name not in ("args", "kwargs")
    }
    if "progress" in known:
        known["progress"] = f"{known['progress']:.0%}"
    return known


def _sentence(row: Row) -> str:
    parts = [row["state"]]
    if row["took"] is not None:
        parts.append(f"in {row['took']:.3f} s")
    if row["error"] or row["message"]:
        parts.append(f"({one_line(': '.join(filter(None, (row['error'], row['message']))))})")
    if row["refused"]:
        parts.append(f"({one_line(row['refused'])})")
    if row["result_kept"]:
        parts.append(safe(json.dumps(row["result"], ensure_ascii=False)))
    return " ".join(parts)


@contextmanager
def _showing() -> Iterator[Callable[[Record], None]]:
    """Show log lines, retries and progress of jobs on stderr."""
    with _bars() if is_terminal(sys.stderr) else _lines() as show_progress:

        def show(record: Record) -> None:
            match record["kind"]:
                case RecordKind.LOG:
                    note(f"{record['id']}: {record.get('text')}")
                case RecordKind.RETRIED:
                    note(f"{record['id']}: failed, retried in {record.get('delay', 0):.0f} s: {record.get('message')}")
                case RecordKind.PROGRESS:
                    show_progress(record)

        yield show


@contextmanager
def _lines() -> Iterator[ShowProgress]:
    """Print occasional lines, but none for progress from before this command: that job may have ended."""
    began, last = wall_clock(), dict[str, float]()

    def show(record: Record) -> None:
        id, at, fraction = record["id"], record["at"], record.get("fraction")
        if at - last.get(id, began - _EVERY) >= _EVERY:
            last[id] = at
            done = "" if fraction is None else f"{fraction:.0%} "
            note(f"{id}: {done}{record.get('text', '')}")

    yield show


@contextmanager
def _bars() -> Iterator[ShowProgress]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bars:
        bars.add_task("waiting", total=None, text="")
        tasks: dict[str, TaskID] = {}

        def show(record: Record) -> None:
            id = record["id"]
            if id not in tasks:
                name = shorter(one_line(f"{record.get('job', '')} {id}"), 50)
                tasks[id] = bars.add_task(escape(name), total=1.0, text="")
            text = escape(shorter(one_line(str(record.get("text", ""))), 60))
            bars.update(tasks[id], completed=record.get("fraction") or 0.0, text=text)

        yield show
