"""`palermo unique`: lists the keys of unique jobs, and frees them."""

import click

from palermo.cli.command_group import Context, misuse, note
from palermo.cli.options import broker_options, query_options
from palermo.cli.output import Column, field, print_rows
from palermo.contract.rows import Row
from palermo.core.text import count


@click.group()
def unique() -> None:
    """List or free the keys of unique jobs."""


@unique.command("list")
@click.option("--orphaned", is_flag=True, help="Only keys held by jobs that no longer exist; takes a second or more.")
@query_options
@click.pass_obj
def list_keys(context: Context, /, orphaned: bool) -> None:
    """List the keys in use, by name."""
    inspector = context.inspector()
    if orphaned:
        columns: list[Column] = [field("Key"), field("Queue"), ("Job", lambda row: row["id"]), field("Since")]
        print_rows(inspector.keys.orphaned(), columns, none="all keys have their jobs.")
        return
    columns = [field("Key"), ("State", _state), field("Queue"), ("Job", lambda row: row["id"]), field("Since")]
    print_rows(inspector.keys.list(), columns, none="no job has a key.")


@unique.command("free")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.option("--orphaned", is_flag=True, help="Free the keys held by jobs that no longer exist.")
@broker_options
@click.pass_obj
def free(context: Context, /, keys: tuple[str, ...], orphaned: bool) -> None:
    """Free keys, so that other jobs can be enqueued. A waiting job takes its key again when it starts."""
    if orphaned is bool(keys):
        raise misuse(
            "keys cannot be combined with --orphaned" if orphaned else "no keys given; name keys or pass --orphaned"
        )
    inspector = context.inspector()
    chosen = [str(row["key"]) for row in inspector.keys.orphaned()] if orphaned else list(keys)
    freed = inspector.keys.free(chosen) if chosen else []
    note(f"freed {count(len(freed), 'key')}.")


def _state(row: Row) -> str:
    until = f" until {row['until']}" if row["until"] else ""
    following = f", then {row['next']}" if row["next"] else ""
    return f"{row['state']}{until}{following}"
