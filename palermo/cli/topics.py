"""`palermo publish` and `palermo topics`: publish events, and manage the groups that subscribe to them."""

from typing import Any

import click

from palermo.cli.command_group import Context, note
from palermo.cli.options import broker_options, parse_since, parsed_json, query_options, yes_option
from palermo.cli.output import Column, confirm, field, print_rows, progress, wants_json
from palermo.contract.rows import Row
from palermo.core.text import count


@click.command()
@click.argument("topic")
@click.option("--payload", metavar="JSON", help="The payload, as JSON; none by default.")
@click.option("--id", "id", metavar="ID", help="The event's id; a new UUID by default.")
@broker_options
@click.pass_obj
def publish(context: Context, /, topic: str, payload: str | None, id: str | None) -> None:
    """Publish an event to all groups that subscribe to TOPIC, such as order.paid, and print its id."""
    client = context.client(creates=True)
    click.echo(client.publish(topic, parsed_json(payload, "--payload"), id=id))


@click.group(invoke_without_command=True)
@query_options
@click.pass_context
def topics(ctx: click.Context) -> None:
    """List or remove the groups that subscribe to events, or replay old events."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_topics)


@topics.command("list")
@query_options
@click.pass_obj
def list_topics(context: Context, /) -> None:
    """List the groups by name, with their topics and queues."""
    wiring = context.inspector().events.topology()
    if not wants_json():
        on_rabbitmq = context.client().settings.address.scheme in ("amqp", "amqps")
        way = f"{wiring['gateway']} -> {wiring['distributor']} -> the queues of the groups. " if on_rabbitmq else ""
        note(f"{way}{_kept(wiring)}")
    columns: list[Column] = [
        ("Topics", lambda row: ", ".join(row["topics"])),
        field("Group"),
        field("Queue"),
        field("Function"),
        field("Pending"),
        ("In progress", lambda row: row["in_progress"]),
        field("Workers"),
    ]
    print_rows(wiring["groups"], columns, none="no group subscribes to events.")


@topics.command("replay")
@click.argument("group")
@click.option("--topic", metavar="PATTERN", help="Only events of these topics, even if GROUP has no subscription.")
@click.option(
    "--since", type=parse_since, metavar="WHEN", help="Only events since this time: 2h (ago) or 2026-12-01T09:00Z."
)
@click.option("--until", type=parse_since, metavar="WHEN", help="Only events until this time.")
@yes_option
@broker_options
@click.pass_obj
def replay(context: Context, /, group: str, yes: bool, **old: Any) -> None:
    """Deliver kept events again, only to GROUP, and print their number."""
    chosen = "the chosen" if any(value is not None for value in old.values()) else "all"
    confirm(lambda: f"Deliver {chosen} kept events to group {group!r} again?", yes=yes)
    with progress("replay") as show:
        replayed = context.inspector().events.replay(group, **old, progress=show)
    click.echo(replayed)


@topics.command("remove")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@yes_option
@broker_options
@click.pass_obj
def remove(context: Context, /, groups: tuple[str, ...], yes: bool) -> None:
    """Unsubscribe groups until one of their workers starts. Jobs in their queues are not removed."""
    confirm(lambda: f"Deliver no more events to {', '.join(groups)}?", yes=yes)
    for group in groups:
        context.inspector().events.unsubscribe(group)


def _kept(wiring: Row) -> str:
    if wiring["kept"] is None:
        return "Events that no group subscribes to are refused."
    return f"{count(wiring['kept'], 'event')} kept."
