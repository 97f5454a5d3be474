"""The arbiter's door: what others ask about keys and limits, as values that JSON has, and the answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palermo.brokers.rabbitmq.limiting import ABOUT, Limiting
from palermo.brokers.rabbitmq.link import Link
from palermo.core.keys import LINGER, UNIQUE, UNIQUE_KEY, Claim, message_from_plain, message_to_plain
from palermo.core.message import Message
from palermo.core.topology import amqp_queue
from palermo.core.unique import Answer, Outcome, Start, Why
from palermo.errors import BrokerRefused, PalermoError, PublishRefused

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.arbiter import Arbiter
    from palermo.brokers.rabbitmq.dealer import Dealer

Plain = Mapping[str, Any]


class Door:
    """Has the arbiter do what is asked, in the process that leads."""

    def __init__(self, exchange: str, link: Link, arbiter: "Arbiter", limiting: Limiting, dealer: "Dealer") -> None:
        self._exchange = exchange
        self._link = link
        self._arbiter = arbiter
        self._limiting = limiting
        self._dealer = dealer

    def answer_now(self, question: Plain) -> Plain | None:
        """The answer, if nothing is to be waited for; to be sent at once, on the channel of the arbiter's answers."""
        match question:
            case {
                "do": "start",
                "message": dict(message),
                "worker": str(worker),
                "run": str(run),
                "again": bool(again),
            }:
                self._arbiter.touch()
                start = self._arbiter.start_now(starting(message), worker=worker, run=run, again=bool(again))
                return None if start is None else {"start": _start_to_plain(start)}
            case {"ask": asked} if asked == ABOUT:
                self._arbiter.touch()
                return self._limiting.answer_now(question)
        return None

    async def answer(self, question: Plain) -> Plain:
        """The answer: `refused` says why it cannot be done, `missing` that there is no such queue."""
        self._arbiter.touch()
        try:
            if question.get("ask") == ABOUT:
                return await self._limiting.answer(question)
            return await self._answer(question)
        except (PublishRefused, BrokerRefused) as error:
            return {"refused": str(error)}
        finally:
            self._arbiter.touch()

    async def _answer(self, question: Plain) -> Plain:
        arbiter = self._arbiter
        match question:
            case {"do": "enqueue", "claims": list(claims)}:
                answers = await arbiter.enqueue([Claim.from_plain(claim) for claim in claims])
                return {"answers": [_answer_to_plain(one) for one in answers]}
            case {"do": "start", "message": dict(message), "worker": str(worker), "run": str(run), "again": again}:
                start = await arbiter.start(starting(message), worker=worker, run=run, again=bool(again))
                return {"start": _start_to_plain(start)}
            case {"do": "readmit", "messages": list(messages)}:
                return {"may": await arbiter.readmit([message_from_plain(one) for one in messages])}
            case {"do": "gone", "jobs": list(jobs)}:
                await arbiter.gone([(str(key), str(id)) for key, id in jobs])
            case {"do": "cancelled", "ids": list(ids)}:
                await arbiter.cancelled([str(id) for id in ids])
            case {"do": "free", "names": list(names)}:
                return {"freed": await arbiter.free([str(name) for name in names])}
            case {"do": "empty", "queue": str(queue), "delete": delete}:
                return await self._empty(queue, delete=bool(delete))
            case {"do": "known"}:
                return {"keys": [key.to_plain() for key in await arbiter.known()]}
        return {}

    async def _empty(self, queue: str, *, delete: bool) -> Plain:
        """Purge or delete a queue, and before that free the keys of what waits in it."""
        told: dict[str, Any] = {}
        await self._dealer.learn()

        async def empty() -> None:
            # First, so that none of its tenants' jobs comes into the queue that has been emptied.
            apart = await self._dealer.clear(queue, None)
            channel = await self._link.channel()
            method = channel.raw.queue_delete if delete else channel.raw.queue_purge
            try:
                frame = await channel.call(method, amqp_queue(self._exchange, queue))
            except PalermoError:
                if not channel.missing:
                    raise
                told["missing"] = True
                return
            await channel.close()
            told["count"] = int(frame.method.message_count) + apart

        await self._arbiter.emptied(queue, empty)
        return told

    async def clear(self, queue: str, tenant: str | None) -> int:
        """Remove the waiting jobs of one tenant of a queue, or of all, and free their keys; how many there were."""
        removed = 0

        async def clear() -> None:
            nonlocal removed
            removed = await self._dealer.clear(queue, tenant)

        if await self._arbiter.is_needed():
            await self._arbiter.emptied(queue, clear, tenant=tenant, apart=True)
        else:
            await clear()
        return removed


def to_start(message: Message) -> dict[str, Any]:
    """What an arbiter must know of a message to let it be started."""
    plain = {name: getattr(message, name) for name in ("id", "job", "queue", "tenant", "run_at")}
    return {**plain, **{name: message.extra[name] for name in (UNIQUE, UNIQUE_KEY, LINGER) if name in message.extra}}


def starting(plain: Plain) -> Message:
    """The message of which this is what `to_start` says."""
    extra = {name: plain[name] for name in (UNIQUE, UNIQUE_KEY, LINGER) if name in plain}
    return Message(extra=extra, **{name: plain[name] for name in ("id", "job", "queue", "tenant", "run_at")})


def _answer_to_plain(answer: Answer) -> dict[str, Any]:
    return {
        "outcome": str(answer.outcome),
        "id": answer.id,
        "state": str(answer.state),
        "instead_of": answer.instead_of,
    }


def answer_from_plain(plain: Plain) -> Answer:
    """What became of an enqueue, as it travels."""
    return Answer(
        outcome=Outcome(plain["outcome"]), id=plain["id"], state=plain["state"], instead_of=plain["instead_of"]
    )


def _start_to_plain(start: Start) -> dict[str, Any]:
    plain = {"why": start.why, "holder": start.holder, "serial": start.serial, "starts": start.starts}
    return {
        **plain,
        "tell": start.tell,
        "content": None if start.content is None else message_to_plain(start.content),
    }


def start_from_plain(plain: Plain) -> Start:
    """Whether a job may be started, as it travels."""
    content = plain["content"]
    return Start(
        why=Why(plain["why"]),
        holder=plain["holder"],
        serial=plain["serial"],
        starts=plain["starts"],
        tell=plain["tell"],
        content=None if content is None else message_from_plain(content),
    )
