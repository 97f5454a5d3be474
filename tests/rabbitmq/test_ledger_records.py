"""The records of a ledger: in any order, doubled, and beside those that a snapshot has replaced."""

from collections.abc import Iterable, Mapping
from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from palermo.brokers.rabbitmq.publishing import ledger_records
from palermo.brokers.rabbitmq.publishing.ledger_records import FORMAT, Batch, LedgerState, newer_format, parts
from palermo.core.message import Message
from palermo.core.plain import message_to_plain

#: The values of states by name, and the ids of the jobs that may not be stored.
State = tuple[Mapping[str, int], set[str]]


def job(id: str) -> dict[str, Any]:
    return message_to_plain(Message(id=id, job="shop.mail", queue="mail", body=b"[]"))


def batch(number: int, **fields: Any) -> Batch:
    return Batch(format=FORMAT, n=number, by="x", **fields)


def read(records: Iterable[Batch]) -> State:
    state = LedgerState(int)
    for record in records:
        state.take(record)
    return state.states(), set(state.unstored_jobs())


class Leader:
    """Writes records as a leader does, and knows what they mean."""

    def __init__(self, random: Random) -> None:
        self.random = random
        #: The records of the ledger, and those that a snapshot has replaced.
        self.log: list[Batch] = []
        self.replaced: list[Batch] = []
        self.states: dict[str, int] = {}
        #: The jobs that were published and of which no record says so; those among them that their queues refused.
        self.jobs: set[str] = set()
        self.refused: set[str] = set()
        self._number = 0
        self._ids = count(1)

    @property
    def state(self) -> State:
        return self.states, self.jobs

    def commit(self) -> None:
        """Change some states, and publish some jobs, of which queues refuse some and take others that they refused."""
        changed = {name: self.random.random() < 0.7 for name in self.random.sample("abcd", self.random.randint(0, 2))}
        self._number += 1
        self.states |= dict.fromkeys((name for name, is_held in changed.items() if is_held), self._number)
        self.states = {name: value for name, value in self.states.items() if changed.get(name, True)}
        jobs = [f"job {next(self._ids)}" for _ in range(self.random.randint(0, 2))]
        self.refused -= {id for id in sorted(self.refused) if self.random.random() < 0.5}
        self._write(jobs, set={name: self._number if is_held else None for name, is_held in changed.items()})
        self.refused |= {id for id in jobs if self.random.random() < 0.4}

    def _write(self, jobs: list[str], **fields: Any) -> None:
        self.jobs = {*self.refused, *jobs}
        self.log.append(batch(self._number, jobs=[job(id) for id in jobs], refused=sorted(self.refused), **fields))

    def snapshot(self) -> Iterable[None]:
        """Write all states again, in parts with commits between them, in place of the records until now."""
        before = len(self.log)
        self._number += 1
        number = self._number
        for part in parts(list(self.states.items())):
            self.log.append(batch(number, set=part))
            yield
            if self.random.random() < 0.3:
                self.commit()
                yield
        self._number += 1
        self._write(sorted(self.refused), floor=number)
        yield
        self.replaced += self.log[:before]
        del self.log[:before]
        yield

    def read_by_next(self) -> State:
        """What the next leader reads: the records in any order, some twice, and some of those that are replaced."""
        records = self.log + [one for one in [*self.log, *self.replaced] if self.random.random() < 0.3]
        self.random.shuffle(records)
        return read(records)


@given(st.integers(0, 2**32), st.lists(st.booleans(), min_size=6, max_size=12))
def test_the_records_say_the_same_in_any_order_and_however_often(seed: int, snapshots: list[bool]) -> None:
    leader = Leader(Random(seed))
    most, ledger_records._PART = ledger_records._PART, 2
    try:
        for is_snapshot in snapshots:
            for _ in leader.snapshot() if is_snapshot else [leader.commit()]:
                assert leader.read_by_next() == leader.state
    finally:
        ledger_records._PART = most


def test_jobs_that_are_stored_are_not_kept_while_a_long_ledger_is_read() -> None:
    state = LedgerState(int)
    for number in range(1, 1_001, 2):
        refused = ["job 5"] if number >= 5 else []
        state.take(batch(number, jobs=[job(f"job {number}")], refused=refused[1:]))
        state.take(batch(number + 1, refused=refused))
    state.take(batch(1_001, jobs=[job("job 1001")]))

    assert len(state._jobs) <= 3
    assert set(state.unstored_jobs()) == {"job 1001"}


def test_only_a_higher_format_is_newer() -> None:
    assert [newer_format({"format": format}) is None for format in (FORMAT, "x", FORMAT + 1)] == [True, True, False]
