"""The checks of `palermo doctor` that SQLite and Redis share."""

import time
from collections.abc import Callable
from typing import Any

from palermo.brokers.features.events import VERSION
from palermo.brokers.features.steps import Job, StepStore, text_of
from palermo.contract.broker import Finding
from palermo.contract.events import Subscription
from palermo.contract.recurring_entries import RecurringEntry
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.message import Message
from palermo.core.text import count

#: Tables of JSON states, each with the function that parses a name and its state.
_STATES: dict[str, Callable[[str | bytes, Any], object]] = {
    "unique-jobs": UniqueJob.from_stored,
    "recurring": RecurringEntry.from_stored,
    "groups": Subscription.from_stored,
}

#: A queue name that no job can have.
_QUEUE = "~doctor"


async def unreadable(store: StepStore) -> list[Finding]:
    """The findings about unparsable states, which another program must have written. Palermo skips them."""
    found = []
    for table, read in _STATES.items():
        states = {text_of(name): state for name, state in (await store.fields(table)).items()}
        if bad := [name for name, state in states.items() if name != VERSION and read(name, state) is None]:
            text = (
                f"{count(len(bad), 'record')} of {table} cannot be read and {'is' if len(bad) == 1 else 'are'}"
                f" ignored: {', '.join(bad[:5])}"
            )
            remedy = (
                "Another program has changed them. To write them again, start a worker with the code of these jobs."
            )
            found.append(Finding.warning("records", text, remedy))
    return found


async def try_out(store: StepStore) -> Finding:
    """Store and delete one job in a queue that no worker serves, and send a message, all in one step."""
    began = time.monotonic()
    job = Job(Message(id="doctor", queue=_QUEUE, job="", body=b""))
    taken, _ = await store.change((), [("try_out", job), ("publish", "bell:doctor", "")])
    took = (time.monotonic() - began) * 1_000
    if taken != 1:
        return Finding.problem(
            "publish", f"one job stored, {taken} found", "Check whether another program has changed the database."
        )
    return Finding.ok("publish", f"a job was stored and taken within {took:.0f} ms")
