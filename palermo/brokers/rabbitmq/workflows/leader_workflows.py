"""The part of the leader that decides about workflows.

Promise: a step is published once the ends before it, and the resulting state, are stored. A worker acknowledges a job
after its end is stored here, so an end is never lost. If an end adds steps, or is not `done`, its resulting state is
committed before any job is published because of that end. Cost: one commit for the ends of a workflow that arrive
together. If the leader dies, the next one reads the states and the ends, and publishes again the jobs that are possibly
not stored.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from msgspec import Struct

from palermo.brokers.features.gathered import Gathered
from palermo.brokers.features.portions import portions
from palermo.brokers.features.steps import Outcome, Step, Stored
from palermo.brokers.features.workflows import ChangeKey, Ending, Workflows
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.publishing.ledger import Ledger, Report, Table
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.publishing.turns import take_turns
from palermo.brokers.rabbitmq.seconds import AGAIN, LOOK_EVERY, TIDY_EVERY
from palermo.brokers.rabbitmq.workflows.step_reports import StepReport, has_only_members, runs_in, workflow_queue
from palermo.contract.clock import seconds_until, wall_clock
from palermo.contract.tasks import uninterrupted, wait_for_any
from palermo.core.instants import Instants
from palermo.core.message import Message
from palermo.core.plain import Plain
from palermo.core.workflow import Graph, step_of
from palermo.core.workflow_rules import How, StepEnd
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Separator, in a state's name, between a workflow's id and the name of a part; and maximum bytes of parts in one
#: commit.
_OF, _PART_BYTES = "\x1f", 1_048_576

#: Minimum seconds between two times that the ends of map members are handled. There may be thousands, and they
#: rarely release a step.
_REST = 0.02


class Packed(Plain, frozen=True):
    """The state of a workflow, or a part of it, as packed by brokers/features/workflow_steps.py."""

    data: bytes
    #: When the workflow's next timeout expires, in Unix seconds.
    due: float | None = None


class LedgerStore:
    """The states of workflows and their parts, in memory and in the ledger. See brokers/features/steps.py."""

    def __init__(self, ledger: Ledger[Packed], append: Callable[[bytes], Awaitable[None]]) -> None:
        """`append` writes a batch to the journal."""
        self._ledger = ledger
        self._append = append
        self.all: dict[str, Packed] = {}
        self._parts: dict[str, set[str]] = {}
        self._due = Instants()
        #: Gathers the states and jobs of several workflows into one commit.
        self._gathered = Gathered(self._commit, size=_size_of)

    def load(self, states: Mapping[str, Packed]) -> None:
        """Start with these states."""
        self.all, self._parts, self._due = {}, {}, Instants()
        self._take(states)

    @property
    def first_due(self) -> float | None:
        """When the first timeout of a workflow expires, in Unix seconds."""
        return self._due.first

    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        return [None if (found := self.all.get(str(name))) is None else found.data for name in names]

    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]:
        found = [self.all.get(f"{workflow}{_OF}{name}") for name in names]
        return [None if one is None else one.data for one in found]

    async def due(self, table: str, now: float, most: int) -> Sequence[str]:
        names = self._due.until(now)
        for name in names:
            self._due.put(name, self.all[name].due)
        return names[:most]

    async def scan(self, table: str) -> AsyncIterator[tuple[Any, Any]]:
        for name, packed in list(self.all.items()):
            if _OF not in name:
                yield name, packed.data

    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome:
        """Apply these changes. All conditions hold, because only the leader changes states."""
        states: dict[str, Packed | None] = {}
        parts: dict[str, Packed] = {}
        jobs: list[Message] = []
        for name, *values in changes:
            match name, values:
                case "put", [job]:
                    jobs.append(job.message)
                case "set", [_, id, state, due]:
                    states[id] = Packed(state, None if due is False else due)
                case "unset", [_, id]:
                    states[id] = None
                case "flow_data", [id, part, data]:
                    parts[f"{id}{_OF}{part}"] = Packed(data)
                case "forget_flow", [id]:
                    states |= dict.fromkeys(self._parts.get(id, ()))
                case "append", [_, batch, *_]:
                    await self._append(batch)
        # First the parts, in records of bounded size, because they have no effect without their workflow.
        split = portions(parts.items(), most_size=_PART_BYTES, size=lambda part: len(part[1].data))
        *early, last = [*split] or [[]]
        for some in early:
            await self._gathered.add((dict(some), ()))
        await self._gathered.add(({**dict(last), **states}, jobs))
        return Outcome(0, [None] * len(changes))

    async def _commit(self, changes: Sequence[tuple[Mapping[str, Packed | None], Sequence[Message]]]) -> None:
        states = {name: packed for some, _ in changes for name, packed in some.items()}
        await self._ledger.commit(states, [job for _, jobs in changes for job in jobs])
        self._take(states)

    def _take(self, states: Mapping[str, Packed | None]) -> None:
        for name, packed in states.items():
            id, is_part, _ = name.partition(_OF)
            if packed is None:
                self.all.pop(name, None)
                self._parts.get(id, set()).discard(name)
            else:
                self.all[name] = packed
                if is_part:
                    self._parts.setdefault(id, set()).add(name)
            if not is_part:
                self._due.put(name, None if packed is None else packed.due)

    def orphans(self) -> dict[str, Packed | None]:
        """The parts of missing workflows, mapped to None. Their leader died before it stored the workflow."""
        return {name: None for id, names in self._parts.items() if id not in self.all for name in names}


def _size_of(change: tuple[Mapping[str, Packed | None], Sequence[Message]]) -> int:
    return sum(len(packed.data) for packed in change[0].values() if packed is not None)


class LeaderWorkflows:
    """Decides about the workflows of one exchange; see the module's docstring."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        *,
        append: Callable[[bytes], Awaitable[None]],
        change_key: ChangeKey,
        cancel_jobs: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        """`arguments` are those of the ledger's queue; `append` writes a batch to the journal.

        `cancel_jobs` cancels jobs by id.
        """
        self._connection = connection
        self._queue = workflow_queue(exchange)
        table = Table(exchange, self._queue, arguments, Packed.from_plain, drops_copies=False)
        self._ledger = Ledger(table, connection, outbox, on_report=self._on_report)
        self._store = LedgerStore(self._ledger, append)
        self._engine = Workflows(self._store, change_key, cancel_jobs=cancel_jobs)
        #: Held while workflows are read or changed.
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._reports: list[Report] = []
        #: When the reports were handled last, on the loop's clock.
        self._looked_at = 0.0

    async def run(self) -> None:
        """Decide about workflows until cancelled. Raises the connection's error when the connection is lost."""
        while not await self._ledger.exists():
            await wait_for_any(self._news, timeout=TIDY_EVERY)
            self._news.clear()
        await take_turns(self._look, self._news, self._connection, "cannot continue workflows")

    async def close(self) -> None:
        """Wait until pending changes are stored."""
        async with self._turn:
            pass

    @property
    def states(self) -> dict[str, Packed]:
        """The known workflows by id. As long as a workflow doesn't change, it is the same object."""
        return {name: packed for name, packed in self._store.all.items() if _OF not in name}

    @property
    def refused(self) -> Collection[str]:
        """The ids of jobs that wait until their queues accept them."""
        return self._ledger.refused.keys()

    async def ask(self, question: Callable[[Workflows], Awaitable[T]]) -> T:
        """The engine's answer, after all stored ends and expired timeouts were handled."""
        # A started change must finish, because another one must not start from the state before it.
        return await uninterrupted(self._answer(question))

    async def _answer(self, question: Callable[[Workflows], Awaitable[T]]) -> T:
        async with self._turn:
            await self._read()
            await self._ledger.reach()
            await self._take_reports()
            await self._engine.pass_time(wall_clock())
            return await question(self._engine)

    async def size(self) -> int:
        """Size of workflows in memory and in the ledger, in bytes."""

        async def measure(_: Workflows) -> int:
            return sum(len(packed.data) for packed in self._store.all.values())

        return await self.ask(measure)

    def _on_report(self, report: Report) -> None:
        self._reports.append(report)
        loop = asyncio.get_running_loop()
        if not has_only_members(report[0]) or loop.time() > self._looked_at + _REST:
            self._news.set()
        else:
            loop.call_at(self._looked_at + _REST, self._news.set)

    async def _look(self) -> float:
        async with self._turn:
            await self._read()
            await self._take_reports()
            await self._engine.pass_time(wall_clock())
            await self._ledger.tidy(self._store.all)
        if self._reports:
            return AGAIN
        due = self._store.first_due
        return LOOK_EVERY if due is None else min(LOOK_EVERY, seconds_until(due, wall_clock))

    async def _read(self) -> None:
        if self._ledger.is_open:
            return
        self._reports = []
        states, reports = await self._ledger.open()
        self._reports = [*reports, *self._reports]
        self._store.load(states)
        if orphans := self._store.orphans():
            await self._ledger.commit(orphans)
            self._store.load({name: packed for name, packed in states.items() if name not in orphans})

    async def _take_reports(self) -> None:
        """Handle the ends that workers have written. The ends of one workflow are handled together, in few commits.

        After an error, the remaining records of that workflow wait for the next call, which may find some ends already
        handled.
        """
        reports, self._reports = self._reports, []
        self._looked_at = asyncio.get_running_loop().time()
        ends: dict[str, list[_End]] = {}
        held: list[tuple[Report, set[str]]] = []
        for report in reports:
            found = self._connection.unreadable.attempt(self._queue, report[0], partial(_ends_of, report[0]))
            if not found:
                self._ledger.keep(report[1])
                continue
            held.append((report, {end.ending.workflow for end in found}))
            for end in found:
                ends.setdefault(end.ending.workflow, []).append(end)
        errors = await asyncio.gather(*(self._handle(*some) for some in ends.items()), return_exceptions=True)
        failed = {id: error for id, error in zip(ends, errors, strict=True) if error is not None}
        for report, ids in held:
            if ids.isdisjoint(failed):
                self._ledger.settle(report[1])
            else:
                self._reports.append(report)
        for id, error in failed.items():
            if not isinstance(error, PalermoError) or not self._ledger.is_open:
                raise error
            log.warning("cannot continue a workflow id=%s error=%r", id, str(error))

    async def _handle(self, id: str, left: list["_End"]) -> None:
        """Handle these ends of one workflow."""
        while left:
            together = list(takewhile(lambda end: end.graph is None, left))
            if together:
                await self._engine.end_together(id, [end.ending for end in together])
            else:
                together = left[:1]
                await self._add(together[0])
            del left[: len(together)]

    async def _add(self, end: "_End") -> None:
        """Handle the end of a run that added steps."""
        assert end.message is not None
        try:
            await self._engine.end(end.message, end.ending.end.how, (), (), graph=end.graph)
        except PalermoError:
            raise
        except Exception as error:  # another program wrote impossible steps
            self._connection.unreadable.skip(self._queue, end.record, error)


class _End(Struct, frozen=True):
    """The end of a run, from a record."""

    ending: Ending
    record: Mapping[str, Any]
    #: The added steps and the run's job. Always set for a run that isn't a step.
    graph: Graph | None = None
    message: Message | None = None


def _ends_of(record: Mapping[str, Any]) -> list[_End]:
    """The ends in a record. Raises one of palermo.contract.stored_records.UNREADABLE."""
    if runs := runs_in(record):
        return [_End(Ending(run.workflow, run.end, run.output, None, ()), record) for run in runs]
    added = StepReport.from_record(record)
    id, path, generation = step_of(added.message.extra) or (added.message.id, "", 0)
    end = StepEnd(path=path, how=How.DONE, generation=generation)
    return [_End(Ending(id, end, None, None, ()), record, added.graph, added.message)]
