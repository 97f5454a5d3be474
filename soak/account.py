"""The final report of a soak, which combines all its checks."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from palermo.client.failed_queues import browse_failed
from soak.arena import Arena
from soak.books import Keys, Messages, Ticks
from soak.ledger import Ledger, table
from soak.parts import FOREIGN, HOSTILE, RECURRING, UNIQUE
from soak.reasons import Reasons, lost_lines
from soak.records import runs
from tests.rabbitmq_node import url_of
from tests.raw_amqp import RawClient

#: Names of the recurring job, of another program's jobs, and the prefix of the soak's own jobs. All other jobs named
#: "mixed." are hostile.
_TICK, _FOREIGN, _OURS = "mixed.tick", "mixed.foreign", "soaked."


class Account:
    """Checks what happened to every job with an id and every message without one."""

    def __init__(self, arena: Arena, stuck: Counter[str]) -> None:
        records = arena.records
        offset = time.time() - time.monotonic()
        cuts = lost_lines(arena.names, arena.logs, monotonic=offset)
        reasons = Reasons([*records.faults, *cuts], arena.names, arena.logs)
        listing = arena.rig.inspector.failed.list(limit=1_000_000)
        failed = _by_job(listing)
        ran = {file: runs(arena.rig.lines(file)) for file in ("runs", "ticks", "foreign", "hostile")}
        self.ledger = Ledger(orders=records.orders, runs=ran["runs"], failed=failed[_OURS], reasons=reasons)
        self.wrongs = [*self.ledger.wrongs, *(f"stuck: {count} in {queue!r}" for queue, count in stuck.items())]
        kinds = Counter(order.kind for order in records.orders)
        again = Counter(self.ledger.duplicates)
        lost, log = self.ledger.lost, "".join(arena.logs.values())
        self.lines = [
            f"{len(records.orders):,} jobs: {table(kinds)}",
            f"{sum(bool(order.id) for order in records.orders):,} confirmed, {self.ledger.refused:,} refused,"
            f" {self.ledger.uncertain:,} not confirmed, {self.ledger.deleted:,} gone with a queue that was deleted",
            f"faults: {table(Counter(fault.kind for fault in records.faults))};"
            f" workers lost their lines {len(cuts):,} times",
        ]
        if UNIQUE in arena.parts:
            keys = Keys(
                orders=records.orders,
                answers=records.answers,
                runs=ran["runs"],
                failed=failed[_OURS],
                left=arena.rig.inspector.keys.list(),
                reasons=reasons,
            )
            self.wrongs += keys.wrongs
            self.lines.append(f"keys: {keys.answers:,} answers that one is taken; two at once: {table(keys.together)}")
        if RECURRING in arena.parts:
            ticks = Ticks(
                runs=ran["ticks"],
                failed=failed[_TICK],
                until=arena.ticked,
                monotonic=lambda instant: instant - offset,
                reasons=reasons,
            )
            self.wrongs += ticks.wrongs
            lost += ticks.lost
            self.lines.append(f"ticks: {len(ticks.runs):,}; again or not: {table(ticks.duplicates)}")
        if FOREIGN in arena.parts:
            sent = [each for each in records.sent if each.kind == "foreign"]
            in_failed = Counter(row["args"][0] for row in failed[_FOREIGN])
            foreign = Messages(sent=sent, runs=ran["foreign"], failed=in_failed, reasons=reasons)
            self._add(foreign, "foreign")
            lost += foreign.lost
        if HOSTILE in arena.parts:
            sent = [each for each in records.sent if each.kind != "foreign"]
            numbers = {each.body: each.number for each in sent}
            in_failed = Counter(numbers[body] for body in _bodies(arena, "failed") if body in numbers)
            hostile = Messages(sent=sent, runs=ran["hostile"], failed=in_failed, reasons=reasons)
            self._add(hostile, "hostile")
            lost += hostile.lost
        (held,) = (row["pending"] for row in arena.rig.inspector.queues.list() if row["name"] == "failed")
        page = arena.rig.client.run(lambda broker: browse_failed(broker, offset=0, limit=1_000_000, newest=False))
        copies = len(page.messages) - len({message.id for message in page.messages})
        if not (held == len(page.messages) and held - copies == len(listing) == listing.total):
            self.wrongs.append(
                f"failed has {len(page.messages)} messages, {copies} of them second copies; {held} are counted and"
                f" {len(listing)} of {listing.total} listed"
            )
        self.lines.append(f"failed: {held:,} messages, {copies:,} of them second copies; {len(listing):,} listed")
        self.lines += [
            f"ran again: {table(again)}",
            f"settled with the result of another worker: {log.count('settled with the result of another worker'):,}",
            f"in failed: {table(self.ledger.errors)}",
            f"lost {lost}, stuck {sum(stuck.values())}",
        ]

    def _add(self, messages: Messages, kind: str) -> None:
        self.wrongs += messages.wrongs
        counts = {outcome or "not confirmed": count for outcome, count in messages.outcomes.items()}
        self.lines.append(f"{kind} messages: {table(counts)}; came again: {messages.surplus:,}")


def _bodies(arena: Arena, queue: str) -> list[bytes]:
    """Return the bodies in a queue, without decoding the headers."""
    with RawClient(url_of(arena.node), timeout=60) as client:
        return [body for _, body in client.messages(queue)]


def _by_job(rows: Any) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        job = str(row["job"])
        found[_OURS if job.startswith(_OURS) else job].append(row)
    return found
