"""The records of the log of keys say the same in any order, doubled, and beside those that a snapshot has replaced."""

from collections.abc import Iterable, Mapping
from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from palermo.brokers.rabbitmq.unique import key_records
from palermo.brokers.rabbitmq.unique.key_records import Batch, LogState, parts
from palermo.core.message import Message
from palermo.core.unique_keys import Cooldown, Key, message_to_plain

#: The numbers of keys by name, and the ids of the jobs that may not be stored.
State = tuple[Mapping[str, int], set[str]]


def key(name: str, serial: int) -> Key:
    return Key(name=name, serial=serial, closed=Cooldown(until=1.0, id="x"))


def job(id: str) -> dict[str, Any]:
    return message_to_plain(Message(id=id, job="shop.mail", queue="mail", body=b"[]"))


def read(records: Iterable[Batch]) -> State:
    state = LogState()
    for record in records:
        state.take(record)
    return {key.name: key.serial for key in state.held_keys()}, set(state.unstored_jobs())


class Leader:
    """Writes records as a leader does, and knows what they mean."""

    def __init__(self, random: Random) -> None:
        self.random = random
        #: The records of the log, and those that a snapshot has replaced.
        self.log: list[Batch] = []
        self.replaced: list[Batch] = []
        self.keys: dict[str, int] = {}
        #: The jobs that were published and of which no record says so; those among them that their queues refused.
        self.jobs: set[str] = set()
        self.refused: set[str] = set()
        self._number = self._stored = 0
        self._ids = count(1)

    @property
    def state(self) -> State:
        return self.keys, self.jobs

    def commit(self) -> None:
        """Change some keys, and publish some jobs, of which queues refuse some and take others that they refused."""
        self._number += 1
        changed = {name: self.random.random() < 0.7 for name in self.random.sample("abcd", self.random.randint(0, 2))}
        self.keys |= dict.fromkeys((name for name, is_held in changed.items() if is_held), self._number)
        self.keys = {name: serial for name, serial in self.keys.items() if changed.get(name, True)}
        jobs = [f"job {next(self._ids)}" for _ in range(self.random.randint(0, 2))]
        self.refused -= {id for id in sorted(self.refused) if self.random.random() < 0.5}
        keys = {name: key(name, self._number).to_plain() if is_held else None for name, is_held in changed.items()}
        self._write(keys, jobs)

    def _write(self, keys: dict[str, Any], jobs: list[str]) -> None:
        stored = self._stored, sorted(self.refused)
        self.jobs = {*self.refused, *jobs}
        self.log.append(Batch(n=self._number, by="x", keys=keys, jobs=[job(id) for id in jobs], stored=stored))
        if jobs:
            self._stored = self._number
            self.refused |= {id for id in jobs if self.random.random() < 0.4}

    def snapshot(self) -> Iterable[None]:
        """Write all keys again, in parts with commits between them, in place of the records until now."""
        before = len(self.log)
        self._number += 1
        number, found = self._number, list(parts([key(name, serial) for name, serial in self.keys.items()]))
        for place, part in enumerate(found):
            self.log.append(Batch(n=number, by="x", keys=part, jobs=[], all=(place, len(found))))
            yield
            if self.random.random() < 0.3:
                self.commit()
                yield
        self._number += 1
        self._write({}, sorted(self.refused))
        yield
        self.replaced += self.log[:before]
        del self.log[:before]
        yield

    def read_by_next(self) -> State:
        """What the next leader reads: the records in any order, some twice, and some of those that are replaced."""
        records = self.log + [one for one in [*self.log, *self.replaced] if self.random.random() < 0.3]
        self.random.shuffle(records)
        return read(records)


@given(st.randoms(use_true_random=False), st.lists(st.booleans(), max_size=12))
def test_the_records_say_the_same_in_any_order_and_however_often(random: Random, snapshots: list[bool]) -> None:
    leader = Leader(random)
    most, key_records._PART = key_records._PART, 2
    try:
        for is_snapshot in snapshots:
            for _ in leader.snapshot() if is_snapshot else [leader.commit()]:
                assert leader.read_by_next() == leader.state
    finally:
        key_records._PART = most


def test_jobs_that_are_stored_are_not_kept_while_a_long_log_is_read() -> None:
    state = LogState()
    for number in range(1, 1_001, 2):
        refused = ["job 5"] if number >= 5 else []
        state.take(Batch(n=number, by="x", keys={}, jobs=[job(f"job {number}")], stored=(number - 1, refused[1:])))
        state.take(Batch(n=number + 1, by="x", keys={}, jobs=[], stored=(number, refused)))
    state.take(Batch(n=1_001, by="x", keys={}, jobs=[job("job 1001")]))

    assert len(state._jobs) <= 3
    assert set(state.unstored_jobs()) == {"job 1001"}


def test_a_record_may_have_fields_that_this_version_does_not_know() -> None:
    record = Batch(n=1, by="x", keys={"a": key("a", 1).to_plain()}, jobs=[]).to_plain()

    assert read([Batch.from_plain({**record, "format": 2, "new": True})]) == ({"a": 1}, set())
