"""`palermo status` and `palermo wait`: the state and the end of jobs, by their ids."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from palermo.cli.command_group import FAILED, NOT_FOUND, Context, exit_code, note
from palermo.cli.job_ids import known_ids
from palermo.cli.options import parse_duration, query_options
from palermo.cli.output import is_terminal, print_facts, print_json, printed_json, wants_json
from palermo.contract.rows import Row
from palermo.core.journal_records import Record, RecordKind
from palermo.core.text import one_line, safe, shorter
from palermo.errors import PalermoError

#: Minimum seconds between two plain lines of a job's progress.
_EVERY = 2.0

#: Seconds of waiting before the first such line: the progress of a job that has already ended is of no use.
_RUNNING = 1.0

#: Seconds for which `status` searches the journal for a job that isn't found elsewhere.
_PATIENCE = 60.0

#: Maximum number of jobs with their own bar on a terminal.
_BARS = 20


@click.command()
@click.argument("id")
@query_options
@click.pass_obj
def status(context: Context, /, id: str) -> None:
    """Show the state of the job ID, or how it ended, if that is known.

    The state is pending, scheduled, working, retrying, failed, done, discarded, cancelled or unknown.
    """
    from palermo.client.status import find_status

    client = context.client()
    row = client.watch(find_status(client, client.job_by_id(id), _PATIENCE)).row()
    if row["state"] == "unknown":
        (whole,) = known_ids(context, [id])
        if whole != id:
            row = client.watch(find_status(client, client.job_by_id(whole), _PATIENCE)).row()
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
    """Wait until the jobs have ended, and print how, with their results if those are kept.

    Their progress and log lines go to stderr. Exit code 0: all are done; 1: a job failed, was discarded or cancelled,
    or has not ended in time; 4: a job is unknown.
    """
    from palermo.client import results
    from palermo.client.status import status_at_end

    client = context.client()
    jobs = [client.job_by_id(id) for id in dict.fromkeys(known_ids(context, ids))]
    with _showing(len(jobs)) as show:
        ended = client.watch(results.ends(client, jobs, timeout, show))
    rows: list[Row] = []
    codes = {0}
    for job, found in zip(jobs, ended, strict=True):
        if isinstance(found, PalermoError):
            codes.add(exit_code(found))
            note(f"palermo: {type(found).__name__}: {found}")
            continue
        row = {
            **status_at_end(found).row(),
            "result": results.result_as_json(client, found),
            "refused": found.get("refused"),
        }
        rows.append(row)
        if row["state"] != "done":
            codes.add(FAILED)
        if not wants_json():
            click.echo(f"{safe(job.id)}: {_sentence(row)}")
    if wants_json():
        print_json(rows)
    raise click.exceptions.Exit(max(codes))


#: How the fields about the job's key are called in a list of facts.
_OF_KEY = {"next_id": "next job of its key", "closed_until": "its key is closed until"}


def _shown_row(row: Row) -> Row:
    known = {name: value for name, value in row.items() if value not in (None, "") and name not in ("args", "kwargs")}
    if "preview" in known:
        known["arguments"] = known.pop("preview")
    for name, words in _OF_KEY.items():
        if name in known:
            known[words] = known.pop(name)
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
def _showing(count: int) -> Iterator[Callable[[Record], None]]:
    """Show the progress and the log lines of jobs on stderr: bars on a terminal, lines elsewhere."""
    if is_terminal(sys.stderr):
        with _bars(count) as show:
            yield show
        return
    last: dict[str, float] = {}
    held: dict[str, Record] = {}
    began = time.monotonic()

    def line(record: Record) -> None:
        id, now = record["id"], time.monotonic()
        match record["kind"]:
            case RecordKind.LOG:
                note(f"{id}: {record.get('text')}")
            case RecordKind.PROGRESS if now - began < _RUNNING:
                held[id] = record
            case RecordKind.PROGRESS if now - last.get(id, -_EVERY) >= _EVERY:
                last[id] = now
                note(f"{id}: {_progress(record)}")
            case kind:
                held.pop(id, None)
                if kind == RecordKind.RETRIED:
                    note(f"{id}: failed, retried in {record.get('delay', 0):.0f} s: {record.get('message')}")

    def show_held() -> None:
        for id, record in list(held.items()):
            last[id] = time.monotonic()
            note(f"{id}: {_progress(record)}")

    timer = threading.Timer(_RUNNING, show_held)
    timer.start()
    try:
        yield line
    finally:
        timer.cancel()


def _progress(record: Record) -> str:
    fraction, text = record.get("fraction"), str(record.get("text", ""))
    return " ".join(filter(None, ("" if fraction is None else f"{fraction:.0%}", text)))


@contextmanager
def _bars(count: int) -> Iterator[Callable[[Record], None]]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns: Sequence[Any] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as bars:
        all_jobs = bars.add_task("waiting" if count == 1 else f"waiting for {count:,} jobs", total=None, text="")
        tasks: dict[str, TaskID] = {}

        def show(record: Record) -> None:
            id, kind = record["id"], record["kind"]
            if kind == RecordKind.LOG:
                console.print(
                    f"{escape(one_line(id))}: {escape(one_line(str(record.get('text', ''))))}", soft_wrap=True
                )
            if kind != RecordKind.PROGRESS or (id not in tasks and len(tasks) >= _BARS):
                return
            if id not in tasks:
                name = shorter(one_line(f"{record.get('job', '')} {id}"), 50)
                tasks[id] = bars.add_task(escape(name), total=1.0, text="")
                bars.update(all_jobs, visible=count > 1)
            fraction = record.get("fraction")
            text = escape(shorter(one_line(str(record.get("text", ""))), 60))
            bars.update(tasks[id], total=None if fraction is None else 1.0, completed=fraction or 0.0, text=text)

        yield show
