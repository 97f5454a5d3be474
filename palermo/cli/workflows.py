"""`palermo workflows`: list and show workflows, retry their failed steps, send signals."""

import json

import click

from palermo.cli.command_group import Context, misuse, note
from palermo.cli.options import broker_options, query_options, yes_option
from palermo.cli.output import Column, confirm, field, print_rows, printed_json
from palermo.contract.rows import Row
from palermo.core.text import count


@click.group(invoke_without_command=True)
@query_options
@click.pass_context
def workflows(ctx: click.Context, /) -> None:
    """List workflows, show one, retry failed steps, send signals."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_workflows)


@workflows.command("list")
@query_options
@click.pass_obj
def list_workflows(context: Context, /) -> None:
    """List the workflows that run or have failed, oldest first."""
    columns: list[Column] = [
        field("Workflow", "id"),
        field("Job"),
        field("State"),
        ("Done", lambda row: f"{row['done']}/{row['total']}"),
        field("Failed"),
        field("Since"),
        ("Waits for", lambda row: ", ".join(row["waits_for"])),
    ]
    print_rows(context.inspector().workflows.list(), columns, none="no workflow runs or has failed.")


@workflows.command("show")
@click.argument("id")
@query_options
@click.pass_obj
def show(context: Context, /, id: str) -> None:
    """Show the steps of the workflow ID with their states."""
    found = context.inspector().workflows.show(id)
    if printed_json(found):
        return
    click.echo(f"{found['job']} {found['id']}: {found['state']} since {found['since']}")
    for step in found["steps"]:
        click.echo(f"{'  ' * (1 + step['name'].count('/'))}{step['name'].rpartition('/')[2]}: {_state(found, step)}")


@workflows.command("retry")
@click.argument("id")
@yes_option
@broker_options
@click.pass_obj
def retry(context: Context, /, id: str, yes: bool) -> None:
    """Requeue the failed jobs of the workflow ID; the steps behind them run again."""
    inspector = context.inspector()
    if undone := inspector.workflows.cleaned_up(id):
        confirm(lambda: f"Retry {id}? These steps for its failure have run: {', '.join(undone)}.", yes=yes)
    note(f"requeued {count(len(inspector.workflows.retry(id)), 'job')}.")


@workflows.command("signal")
@click.argument("id")
@click.argument("name")
@click.argument("value", default="null")
@broker_options
@click.pass_obj
def signal(context: Context, /, id: str, name: str, value: str) -> None:
    """Send the signal NAME to the workflow ID, with a VALUE in JSON."""
    try:
        decoded = json.loads(value)
    except ValueError:
        raise misuse(f"{value!r} is not JSON; quote text, such as '\"yes\"'") from None
    context.inspector().workflows.signal(id, name, decoded)
    note(f"sent {name}.")


def _state(workflow: Row, step: Row) -> str:
    numbers = f", {step['over']:,} of {step['total']:,}, {step['failed']:,} failed" if "total" in step else ""
    waits = ", waiting for its signal" if step["name"] in workflow["waits_for"] else ""
    return f"{step['state']}{numbers}{waits}"
