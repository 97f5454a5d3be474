"""`palermo workflows`: lists and shows workflows, retries failed steps, and sends signals."""

from collections.abc import Iterator

import click

from palermo.cli.command_group import Context, note
from palermo.cli.options import broker_options, parsed_json, query_options, yes_option
from palermo.cli.output import Column, confirm, field, print_rows, printed_json
from palermo.contract.rows import Row
from palermo.core.text import count


@click.group(invoke_without_command=True)
@query_options
@click.pass_context
def workflows(ctx: click.Context, /) -> None:
    """List or show workflows, retry failed steps, or send signals."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_workflows)


@workflows.command("list")
@query_options
@click.pass_obj
def list_workflows(context: Context, /) -> None:
    """List running and failed workflows, oldest first."""
    columns: list[Column] = [
        field("Workflow", "id"),
        field("Job"),
        field("State"),
        ("Done", lambda row: f"{row['done']:,} of {row['total']:,}"),
        field("Failed"),
        field("Since"),
        ("Waits for", lambda row: ", ".join(row["waits_for"])),
    ]
    print_rows(context.inspector().workflows.list(), columns, none="no workflow is running or has failed.")


@workflows.command("show")
@click.argument("id")
@query_options
@click.pass_obj
def show(context: Context, /, id: str) -> None:
    """Show the steps of the workflow ID as a tree, with the state of each step and the reason why it is waiting."""
    found = context.inspector().workflows.show(id)
    if printed_json(found):
        return
    ended = f", ended {found['ended_at']}" if found["ended_at"] else ""
    click.echo(f"{found['job']} {found['id']}: {found['state']}, since {found['since']}{ended}")
    numbers = f"{found['done']:,} of {count(found['total'], 'step')} done, {found['failed']:,} failed"
    click.echo(f"{numbers}; {found['left_out']:,} more are not kept" if found["left_out"] else numbers)
    width = max((len(line) for line, _ in _tree(found)), default=0)
    for line, step in _tree(found):
        click.echo(f"{line:{width}}  {_state(step)}")


@workflows.command("retry")
@click.argument("id")
@yes_option
@broker_options
@click.pass_obj
def retry(context: Context, /, id: str, yes: bool) -> None:
    """Requeue the failed jobs of the workflow ID. The steps after them run again."""
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
    """Send the signal NAME to the workflow ID, with an optional VALUE in JSON."""
    sent = context.inspector().workflows.signal(id, name, parsed_json(value, "VALUE"))
    note(f"sent {name}. {sent}".rstrip())


def _tree(workflow: Row) -> Iterator[tuple[str, Row]]:
    """Yield the steps with indentation: steps that were added by a step are below it."""
    for step in workflow["steps"]:
        yield f"{'  ' * (1 + step['name'].count('/'))}{step['name'].rpartition('/')[2]}", step


def _state(step: Row) -> str:
    """The step's state, the counts of a map's members, and why it hasn't ended."""
    numbers = ""
    if step["total"] is not None:
        numbers = f"{step['over']:,} of {step['total']:,} over, {step['failed']:,} failed, {step['running']:,} running"
    return ", ".join(filter(None, (step["state"], numbers, step["why"])))
