"""Limits and rates on RabbitMQ: whoever leads decides, in memory, and what it does not know it asks the workers.

Nothing of this is stored. A job that may not run now is put aside where delayed jobs wait; when a permit is free
the next one that waits for it, and is held by the clock since it is due within seconds, is published at once. One that
is not at hand comes by itself. A worker's word that a run has ended may be lost, and a worker may die: so as long
as somebody waits, all workers are asked what they run, twice a second.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.presence import call_roll
from palermo.core.permits import SOON, Aside, Demand, Go, LimitInfo, Permits, Rate
from palermo.errors import PalermoError

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.held import Due

Plain = Mapping[str, Any]

#: Seconds between two questions to the workers, while somebody waits for a permit.
_LOOK_EVERY = 0.5

#: How a question says what it is about.
ABOUT = "limits"


class Limiting:
    """The permits of one exchange, in the process that leads."""

    def __init__(self, exchange: str, link: Link, due: "Due") -> None:
        self._exchange = exchange
        self._link = link
        self._due = due
        self._permits = Permits(time.time())
        self._learnt = False
        self._learning = asyncio.Lock()

    def answer_now(self, question: Plain) -> Plain | None:
        """The same, where it is known what runs; else None."""
        return self._answer(question) if self._learnt else None

    async def answer(self, question: Plain) -> Plain:
        """What is asked, as values that JSON has. Raises BrokerUnavailable."""
        if not await self._begin() and question.get("do") == "ask":
            return {"at": time.time() + SOON, "turn": question.get("turn") is True}
        return self._answer(question)

    def _answer(self, question: Plain) -> Plain:
        match question:
            case {"do": "ask", "key": str(key), "id": str(id), "worker": str(worker)}:
                rate, limit = question.get("rate") or "", question.get("limit")
                demand = Demand(
                    key=key,
                    limit=limit if isinstance(limit, int) else None,
                    rate=Rate.parse(rate) if rate else None,
                    written=str(rate),
                    turn=question.get("turn") is True,
                )
                verdict = self._permits.ask(demand, (worker, id), time.time())
                if isinstance(verdict, Go):
                    return {"wait": verdict.wait}
                return {"at": verdict.at, "turn": verdict.turn}
            case {"do": "ended", "key": str(key), "id": str(id), "worker": str(worker)}:
                self._permits.ended(key, (worker, id), time.time())
                self._call()
            case {"do": "known"}:
                return {"keys": [[one.key, one.limit, one.rate, one.running, one.waiting] for one in self._known()]}
        return {}

    async def run(self) -> None:
        """See that permits of those who are gone are free, and are used."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._permits.contended:
                await self._learn()
                self._call()

    def _known(self) -> list[LimitInfo]:
        return self._permits.known(time.time())

    async def _begin(self) -> bool:
        """Whether it is known what runs: before that nothing is decided."""
        if not self._learnt:
            async with self._learning:
                self._learnt = self._learnt or await self._learn(first=True)
        return self._learnt

    async def _learn(self, *, first: bool = False) -> bool:
        """Ask all workers; whether all answered. Of one that lives and is silent nothing is believed."""
        workers = await call_roll(self._link, self._exchange)
        if workers is None:
            return False
        asked = [(worker.id, worker.asks) for worker in workers] if first else ()
        self._permits.learn([(worker.id, worker.permits) for worker in workers], time.time(), asked=asked)
        return True

    def _call(self) -> None:
        """Bring to their queues those that wait and for which there are permits."""
        now = time.time()
        if not self._permits.contended:
            self._permits.call(now, lambda _: False)
            return
        held = {message.id for message in self._due.jobs()}
        called = set(self._permits.call(now, held.__contains__))
        for one in self._due.take(lambda message: message.id in called) if called else ():
            self._due.call(one)


class Asks(Protocol):
    """What has whoever leads answer."""

    async def ask_arbiter(self, question: Plain) -> Plain:
        """See Timekeeper."""

    async def tell_arbiter(self, news: Plain) -> None:
        """The same."""


class RabbitmqLimits:
    """One session's questions to whoever decides."""

    def __init__(self, keeper: Asks) -> None:
        self._keeper = keeper
        self._telling: set[asyncio.Task[None]] = set()

    async def ask(self, demand: Demand, *, id: str, worker: str) -> Go | Aside:
        """Whether this worker may run the job now. Raises BrokerUnavailable."""
        question = {"do": "ask", "key": demand.key, "limit": demand.limit, "rate": demand.written, "turn": demand.turn}
        told = await self._keeper.ask_arbiter({"ask": ABOUT, **question, "id": id, "worker": worker})
        return Go(float(told["wait"])) if "wait" in told else Aside(float(told["at"]), turn=bool(told["turn"]))

    def ended(self, key: str, *, id: str, worker: str) -> None:
        """Tell, without waiting, that a run has ended."""
        task = asyncio.ensure_future(self._tell({"ask": ABOUT, "do": "ended", "key": key, "id": id, "worker": worker}))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def known(self) -> list[LimitInfo]:
        """All keys of which something is known, by name. Raises BrokerUnavailable."""
        told = await self._keeper.ask_arbiter({"ask": ABOUT, "do": "known"})
        return [
            LimitInfo(key=str(key), limit=limit, rate=str(rate), running=int(running), waiting=int(waiting))
            for key, limit, rate, running, waiting in told["keys"]
        ]

    async def _tell(self, news: Plain) -> None:
        with suppress(PalermoError):  # then it is found out by asking what we run
            await self._keeper.tell_arbiter(news)
