"""Contract: the journal, a log that anyone appends to and any number read."""

import asyncio
import time
from collections.abc import Sequence

from palermo.contract.broker import Broker
from palermo.contract.journal import FROM_START, JournalReader, ReadFrom
from palermo.core.journal_records import RecordBatch, encode, names_any
from tests.contract.tools import Open, until


class Reading:
    """Remembers the batches it was given."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []

    def __call__(self, batch: RecordBatch) -> None:
        if batch.records:
            self.batches.append(batch)

    @property
    def ids(self) -> list[str]:
        return [record["id"] for batch in self.batches for record in batch.records]


def batch(*ids: str, writer: str = "pid:1@h") -> bytes:
    return encode(writer, [{"kind": "started", "at": 1.5, "id": id, "job": "a", "queue": "jobs"} for id in ids])


async def append(broker: Broker, ids: Sequence[str]) -> None:
    for id in ids:
        await broker.journal.append(batch(id))


async def caught_up(reader: JournalReader) -> None:
    await until(reader.caught_up.is_set)


class JournalingContract:
    async def test_what_was_appended_is_read_in_order_by_everyone(self, broker: Broker, another: Open) -> None:
        await broker.journal.append(batch("a", "b", writer="pid:7@h"))
        await append(broker, ["c"])

        for other in (broker, await another()):
            reading = Reading()
            reader = await other.journal.read(reading, FROM_START)
            await caught_up(reader)
            assert reading.ids == ["a", "b", "c"]
            assert [one.writer for one in reading.batches] == ["pid:7@h", "pid:1@h"]
            assert reading.batches[0].position < reading.batches[1].position == reader.end

    async def test_a_reader_goes_on_as_others_append(self, broker: Broker, another: Open) -> None:
        await append(broker, ["a"])
        old, new = Reading(), Reading()
        end = (await broker.journal.read(old)).end
        reader = await broker.journal.read(new, ReadFrom(position=end + 1))
        await caught_up(reader)

        await append(await another(), ["b", "c"])

        await until(lambda: old.ids, ["a", "b", "c"])
        await until(lambda: new.ids, ["b", "c"])

    async def test_reading_may_begin_anywhere(self, broker: Broker) -> None:
        first = Reading()
        reader = await broker.journal.read(first)
        await caught_up(reader)
        await append(broker, ["a", "b", "c"])
        await until(lambda: first.ids, ["a", "b", "c"])
        positions = [one.position for one in first.batches]

        async def begun(start: ReadFrom) -> tuple[list[str], JournalReader]:
            reading = Reading()
            reader = await broker.journal.read(reading, start)
            await caught_up(reader)
            return reading.ids, reader

        assert [(await begun(ReadFrom(last=many)))[0] for many in (2, 1_000)] == [["b", "c"], ["a", "b", "c"]]
        assert (await begun(ReadFrom(since=time.time() - 3_600)))[0] == ["a", "b", "c"]
        await begun(ReadFrom(since=time.time() + 3_600))
        ids, second = await begun(ReadFrom(position=positions[1]))
        assert (ids, second.begin, second.end) == (["b", "c"], positions[1], positions[2])
        # That is a position of another journal.
        ids, beyond = await begun(ReadFrom(position=positions[2] + 100))
        assert ids == ["a", "b", "c"]
        assert beyond.begin <= positions[2]

    async def test_only_the_batches_that_are_wanted_are_handed_out(self, broker: Broker) -> None:
        await append(broker, ["job-1", "job-2", "job-3"])
        reading = Reading()

        reader = await broker.journal.read(reading, wants=names_any(["job-2", "job-4"]))
        await caught_up(reader)
        assert reading.ids == ["job-2"]

        await append(broker, ["job-5", "job-4"])
        await until(lambda: reading.ids, ["job-2", "job-4"])

    async def test_a_reader_that_was_closed_hears_no_more(self, broker: Broker) -> None:
        reading, other = Reading(), Reading()
        reader = await broker.journal.read(reading)
        await broker.journal.read(other)
        await reader.close()
        await append(broker, ["a"])

        await until(lambda: other.ids, ["a"])
        assert reader.ended.is_set()
        assert reading.ids == []
        await reader.close()

    async def test_a_batch_of_a_megabyte_and_what_is_no_batch(self, broker: Broker) -> None:
        await broker.journal.append(batch("x" * 1_000_000))
        await broker.journal.append(b"\xff no batch")
        await broker.journal.append(b'{"version": 99, "records": [{"kind": "new", "at": 1}]}')
        await append(broker, ["a"])
        reading = Reading()

        await caught_up(await broker.journal.read(reading))

        assert [len(id) for id in reading.ids] == [1_000_000, 1]

    async def test_what_is_too_much_is_forgotten(self, another: Open) -> None:
        broker = await another(journal_bytes=1_000_000)
        for number in range(401):
            await broker.journal.append(batch(f"{number}", "x" * 20_000))
        reading = Reading()

        await caught_up(await broker.journal.read(reading))

        kept = [int(id) for id in reading.ids if id[0] != "x"]
        assert 20 < len(kept) < 350
        assert kept == list(range(kept[0], 401))

    async def test_hundreds_of_batches_are_replayed(self, broker: Broker) -> None:
        await asyncio.gather(*(broker.journal.append(batch(f"{n}")) for n in range(250)))
        reading = Reading()

        await caught_up(await broker.journal.read(reading))

        assert sorted(map(int, reading.ids)) == list(range(250))
