"""One session's view of an exchange in Redis. It reads and changes the data by scripts.

Redis runs one script at a time and nothing else in between, so a script's changes are atomic. A decision made in Python
is written by the script `change`, on condition that the data it is based on is unchanged; otherwise the session reads
and decides again.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgpack
from msgspec.structs import replace
from redis.exceptions import NoScriptError, RedisError, ResponseError

from palermo.brokers.features.steps import Entry, Extent, Found, Job, Outcome, Part, Step, StepStore, Stored, text_of
from palermo.brokers.redis.connecting import connect, connect_blocking, database, wanted_replicas
from palermo.brokers.redis.connection import Connection, Messages, translated, trouble_of
from palermo.brokers.redis.direct_calls import DirectCalls
from palermo.brokers.redis.jobs import from_blob, id_in, to_job
from palermo.contract import clock
from palermo.contract.broker import OnPublished, SessionParameters, Tenant
from palermo.contract.finding import MOST_FOUND
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.trouble import Trouble
from palermo.core.address import Address
from palermo.core.message import Message
from palermo.core.text import count
from palermo.errors import (
    BrokerBlocked,
    BrokerError,
    BrokerRefused,
    BrokerUnavailable,
    NotFound,
    PalermoError,
    PublishRefused,
)

log = logging.getLogger("palermo.redis")

T = TypeVar("T")

#: Size above which a body is not sent twice, since that may take long on a slow line.
_QUICK_BYTES = 65_536

#: Number of hash fields read in one batch when all are needed.
_SCAN_SIZE = 500

#: Maximum number of messages, and of their bytes, that a sweep holds in memory; and the batch size of a purge.
_STEP, _STEP_BYTES, _PURGE_STEP = 200, 8 * 1024 * 1024, 2_000

#: Tolerated difference of Redis's clock in seconds. Reading by time starts this much earlier.
_CLOCK_DIFFERENCE = 2.0

#: Number of digits for the second part of a stream id when both parts, milliseconds and a number, are packed into one
#: integer.
_DIGITS = 6

#: A number as the scripts write it.
_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[+-]?\d+)?")


@cache
def _script(name: str) -> tuple[str, str]:
    """The text of a script, and its hash for EVALSHA."""
    folder = files("palermo.brokers.redis") / "scripts"
    parts = ("common", *(("claiming",) if name in ("publish", "work", "similar") else ()), name)
    text = "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Store(StepStore):
    """One session's connections to Redis, opened by open_store."""

    def __init__(self, connection: Connection, address: Address, session: SessionParameters) -> None:
        """`address` is that of the connected server."""
        self._connection = connection
        self._address = address
        self._session = session
        #: Number of replicas that must have a change before its call returns.
        self.wanted_replicas = wanted_replicas(session.address)
        self._messages: Messages | None = None
        self._opening = asyncio.Lock()
        self._thread = threading.get_ident()
        # A short timeout leaves most of the time for the ordinary path.
        self._direct = DirectCalls(lambda: connect_blocking(address, session.timeout / 8, _client_name(session)))
        self._closed = False
        self.server = str(address)
        self.timeout = session.timeout
        self.prefix = _prefix(session)
        number = database(session.address)
        if number:  # all databases of a Redis server share its channels
            self.commands, self.cancels = f"commands:{number}", f"cancelled:{number}"
        self.lost: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        #: The problem that the server last reported to this session.
        self.trouble: Trouble | None = None
        self._watch(connection.lost)

    def key(self, name: str) -> str:
        """The full name of a key in Redis."""
        return f"{self.prefix}{name}"

    async def call(self, command: str, *arguments: Any) -> Any:
        """Run a Redis command and return its answer. Raises BrokerUnavailable, BrokerRefused, PublishRefused."""
        return await self._within(self._connection.call(command, *arguments))

    async def find_trouble(self) -> Trouble | None:
        """The server's problem, found by storing a small value that expires immediately.

        Raises BrokerUnavailable, BrokerRefused.
        """
        with contextlib.suppress(PublishRefused, BrokerBlocked):
            await self.call("SET", self.key("trouble"), "", "PX", 1)
            self.trouble = None
        return self.trouble

    async def fields(self, name: str) -> dict[bytes, bytes]:
        """All fields of a hash, in order. Raises the errors of `call`."""
        found = await self.call("HGETALL", self.key(name))
        return dict(sorted(zip(found[::2], found[1::2], strict=True)))

    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        return list(await self.call("HMGET", self.key(table), *names)) if names else []

    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]:
        return list(await self.call("HMGET", self.key(f"flow:{workflow}"), *names)) if names else []

    async def due(self, table: str, now: float, most: int) -> Sequence[str]:
        key = self.key(f"{table}-due")
        found = await self.call("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, most)
        for name in found:
            if text_of(name).encode() != name:  # written by another program; it would stay due forever
                await self.call("ZREM", key, name)
        return [text_of(name) for name in found]

    async def some(self, table: str, cursor: Stored, most: int) -> tuple[Stored, Sequence[tuple[Stored, Stored]]]:
        next, found = await self.call("HSCAN", self.key(table), cursor or b"0", "COUNT", most)
        return b"" if next == b"0" else next, list(zip(found[::2], found[1::2], strict=True))

    async def permits(self, number: Any, permit: str) -> tuple[bool, int]:
        has = await self.call("HGET", self.key("permits"), number)
        return has == permit.encode(), await self.call("SCARD", self.key(f"permit:{permit}"))

    async def permit_counts(self, permits: Sequence[Stored]) -> Sequence[tuple[int, int, int]]:
        found: Sequence[tuple[int, int, int]] = await self.run("look", "limits", *permits)
        return found

    async def absent(self, ids: Collection[str]) -> set[str]:
        # There are usually far fewer jobs with keys than jobs.
        there, cursor, absent = set[str](), b"0", set[str]()
        while True:
            cursor, numbers = await self.call("SSCAN", self.key("keyed"), cursor, "COUNT", _SCAN_SIZE)
            blobs = await self.call("HMGET", self.key("jobs"), *numbers) if numbers else []
            there |= {id_in(blob) for blob in blobs if blob is not None}
            if cursor == b"0":
                break
        for id in set(ids) - there:
            if not await self.call("ZLEXCOUNT", self.key("later-ids"), f"[{id}\0", f"({id}\x01"):
                absent.add(id)
        return absent

    async def entries(self, log: str, first: int, last: int | None, most: int) -> Sequence[Entry]:
        end = "+" if last is None else _id_of(last)
        found = await self.call("XRANGE", self.key(log), _id_of(first), end, "COUNT", most)
        return [_entry(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in found]

    async def newest(self, log: str, count: int = 1) -> int | None:
        found = await self.run("look", "newest", log, count)
        return _place_of(found) if found else None

    async def place_at(self, log: str, instant: float) -> int:
        return _place_of(b"%d-0" % max(0, int((instant - _CLOCK_DIFFERENCE) * 1_000)))

    async def size(self, log: str) -> int:
        return int(await self.call("XLEN", self.key(log)))

    async def keys_held_by(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        holders = self.key("key-holders")
        if not await self.call("EXISTS", holders):
            return []
        found = await asyncio.gather(*(self.call("ZRANGEBYLEX", holders, f"[{id}\0", f"({id}\x01") for id in ids))
        return [
            (id, text_of(member).partition("\0")[2])
            for id, members in zip(ids, found, strict=True)
            for member in members
        ]

    async def put_due(self, now: float, most: int) -> Sequence[float | None]:
        problem, *instants = await self.run("due", repr(now), most)
        if problem:
            log.warning(
                "cannot move due jobs to their queues, retrying in a minute error=%r",
                str(self.translated(ResponseError(text_of(problem)))),
            )
        return [float(one) if one else None for one in instants]

    async def later_page(self, chosen: ScheduledFilter, offset: int, limit: int) -> tuple[list[Message], int]:
        if not chosen.everything:
            matching = [message async for _, message in self.later(chosen)]
            return matching[offset : offset + limit], len(matching)
        total = int(await self.call("ZCARD", self.key("later")))
        numbers = await self.call("ZRANGE", self.key("later"), offset, offset + limit - 1) if limit else []
        return [message for _, message in await self._jobs_later(numbers)], total

    async def later(self, chosen: ScheduledFilter) -> AsyncIterator[tuple[Any, Message]]:
        rest = replace(chosen, ids=None, due=chosen.due)
        if chosen.ids is not None and len(chosen.ids) <= _SCAN_SIZE:
            found = await self._jobs_later(await self._numbers_of(sorted(chosen.ids)))
            for one in sorted(found, key=lambda one: (one[1].run_at or 0.0, int(one[0]))):
                if rest.matches(one[1]):
                    yield one
            return
        low, high = chosen.due or ("-inf", "+inf")
        # Read all numbers first, because jobs come and go in the meantime.
        numbers = await self.call("ZRANGEBYSCORE", self.key("later"), low, high)
        for first in range(0, len(numbers), _SCAN_SIZE):
            for one in await self._jobs_later(numbers[first : first + _SCAN_SIZE]):
                if chosen.matches(one[1]):
                    yield one

    async def _numbers_of(self, ids: Sequence[str]) -> list[bytes]:
        """The numbers of the scheduled jobs with these ids."""
        key = self.key("later-ids")
        found = await asyncio.gather(*(self.call("ZRANGEBYLEX", key, f"[{id}\0", f"({id}\x01") for id in ids))
        return [member.rpartition(b"\0")[2] for members in found for member in members]

    async def _jobs_later(self, numbers: Sequence[bytes]) -> list[tuple[str, Message]]:
        """The jobs with these numbers that still exist."""
        if not numbers:
            return []
        blobs: Sequence[Any] = await self.call("HMGET", self.key("jobs"), *numbers)
        return [
            (number.decode(), from_blob(blob, None))
            for number, blob in zip(numbers, blobs, strict=True)
            if blob is not None
        ]

    async def find(self, ids: Collection[str], *, beginnings: bool) -> list[Found]:
        blobs: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, some = await self.run("look", "find", cursor, "1" if beginnings else "", *ids)
            blobs |= dict(some)
            if cursor == b"0" or len(blobs) >= MOST_FOUND:
                break
        found = [await self._place(number, blob) for number, blob in blobs.items()]
        return [one for one in found if one is not None]

    async def _place(self, number: bytes, blob: bytes) -> Found | None:
        """The location of the job with this number; None if it no longer exists."""
        message = from_blob(blob, None)
        match await self.run("look", "place", message.queue, message.tenant, number):
            case b"held", worker:
                return Found(message, worker=text_of(worker))
            case b"waits", queue:
                return Found(from_blob(blob, name := text_of(queue)), name)
            case b"later", _:
                return Found(message)
        return None

    async def extent(self, queue: str) -> Extent:
        exists, last, total, tenants = await self.run("look", "extent", queue)
        self._check_exists(queue, exists)
        return Extent(self.count(last, "number"), total, ("", *(text_of(tenant) for tenant in tenants)))

    def _check_exists(self, queue: str, exists: int) -> None:
        if not exists:
            raise NotFound(f"there is no queue {queue!r} at {self.server}. `palermo queues` lists the queues.")

    async def page(
        self, queue: str, offset: int, limit: int, max_body: int, *, newest: bool
    ) -> tuple[int, list[Message]]:
        exists, total, blobs = await self.run("look", "page", queue, offset, limit, "1" if newest else "", max_body + 1)
        self._check_exists(queue, exists)
        return total, [from_blob(blob, queue) for blob in blobs]

    async def tenants(self, queue: str) -> list[Tenant]:
        return [
            Tenant(name=text_of(name), pending=pending, share=float(share))
            for name, pending, share in await self.run("look", "tenants", queue)
            if pending
        ]

    async def tenant_jobs(self) -> Mapping[str, int]:
        counts = await self.fields("tenant-jobs")
        return {text_of(queue): int(count) for queue, count in counts.items() if count.isdigit()}

    async def delete_empty(self, queue: str) -> bool:
        return bool(await self.run("delete", queue))

    async def part(self, queue: str, place: str, after: Any, last: int, ids: Collection[str]) -> Part:
        begin = "-inf" if after is None else after
        found, after, jobs = await self.run("look", "step", queue, place, begin, last, _STEP, _STEP_BYTES)
        chosen = [
            (seen, number, from_blob(blob, queue))
            for seen, (number, blob) in enumerate(jobs)
            if not ids or id_in(blob) in ids
        ]
        return Part(not found, len(jobs), after, chosen)

    async def purge_some(
        self, queue: str, places: Sequence[str], last: int, *, leave_keyed: bool
    ) -> tuple[int, bool, list[tuple[str, Any, Message]]]:
        some, more, keyed = await self.run("purge", queue, last, _PURGE_STEP, "1" if leave_keyed else "", *places)
        left = [(text_of(place), number, from_blob(blob, queue)) for place, number, blob in keyed]
        return some, more == b"1", left

    def begin(self, name: str, *arguments: Any) -> "asyncio.Future[Any]":
        """Start a script; see Connection.begin. Only for scripts that this session has already run."""
        return self._connection.begin("EVALSHA", _script(name)[1], 1, self.prefix, *arguments)

    def try_publish(self, message: Message, token: tuple[str, int, int], ended: OnPublished) -> bool:
        """Send a message that needs no confirm besides Redis's answer; see palermo.contract.broker.Broker.

        `token` identifies the attempt: see Attempts.begin.
        """
        if self.ended or self.wanted_replicas:
            return False
        try:
            job = to_job(message)
        except PalermoError:
            return False  # `publish` raises the error

        def answered(answer: "asyncio.Future[Any]") -> None:
            error = answer.exception()
            ended(None if error is None else self.translated(error))

        command = ("EVALSHA", _script("publish")[1], 1, self.prefix, repr(clock.wall_clock()), *token, *job)
        if threading.get_ident() != self._thread:
            done = self._direct.call(*command) if len(message.body) <= _QUICK_BYTES else None
            if done:
                ended(None)
            return self._connection.try_begin(answered, *command) if done is None else done
        self._connection.begin(*command).add_done_callback(answered)
        return True

    def count(self, value: bytes | None, name: str) -> int:
        """The integer in the stored value with this name; 0 for a missing value.

        Raises BrokerRefused for an invalid one.
        """
        if value is None or value.isdigit():
            return int(value or 0)
        raise BrokerRefused(
            f"Redis at {self.server}: {self.key(name)} is {value!r:.100}, but must be a whole number. Another"
            " program has changed it. Set it to a number greater than all fields of the hash `jobs`."
        )

    async def run(self, name: str, *arguments: Any) -> Any:
        """Run a script and return its answer. Raises the errors of `call`."""
        text, hash = _script(name)
        try:
            answer = await self.call("EVALSHA", hash, 1, self.prefix, *arguments)
        except NoScriptError:
            answer = await self.call("EVAL", text, 1, self.prefix, *arguments)
        if self.wanted_replicas and name in _PROMISED:
            await self._wait_for_replicas()
        return answer

    async def reload(self) -> None:
        """Load the scripts into Redis, which loses them when it restarts."""
        for name in _SCRIPTS:
            await self.call("SCRIPT", "LOAD", _script(name)[0])

    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome:
        # Redis's own msgpack has one type for text and bytes.
        packed = msgpack.packb((conditions, changes, clock.wall_clock()), default=_packed, use_bin_type=False)
        failed, *answers = await self.run("change", packed)
        return Outcome(failed, answers)

    async def messages(self) -> Messages:
        """The connection for messages between sessions, opened on first use."""
        async with self._opening:
            if self._closed:
                raise self.closed_error()
            if self._messages is None:
                raw, _ = await connect(self._address, self.timeout, _client_name(self._session), self.prefix)
                self._messages = Messages(raw, self.server)
                self._watch(self._messages.lost)
            return self._messages

    async def listen(self, channel: str, callback: Callable[..., None]) -> None:
        """Call the function for each message of a channel, and when the session is lost."""
        messages = await self.messages()
        await self._within(messages.subscribe(self.key(channel), callback))

    async def publish(self, channel: str, text: str) -> None:
        await self.call("PUBLISH", self.key(channel), text)

    async def unlisten(self, channel: str, callback: Callable[..., None]) -> None:
        if self._messages is not None and not self._closed:
            with contextlib.suppress(BrokerError):
                await self._within(self._messages.unsubscribe(self.key(channel), callback))

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._messages is not None:
            await self._messages.close()
        self._direct.close()
        await self._connection.close()

    @property
    def ended(self) -> bool:
        """Whether the session is closed or lost."""
        messages = self._messages
        return self._closed or self._connection.lost.done() or (messages is not None and messages.lost.done())

    @property
    def closed(self) -> bool:
        """Whether this process closed the session."""
        return self._closed

    def closed_error(self) -> BrokerUnavailable:
        """The error of a call after `close`."""
        return BrokerUnavailable(f"the session with Redis at {self.server} is closed. Open another.")

    def lease_expired(self) -> BrokerUnavailable:
        """The error for a worker whose lease has expired."""
        return BrokerUnavailable(f"Redis at {self.server}: another process considered this worker dead.")

    def translated(self, error: BaseException) -> BrokerError:
        """Palermo's error for the error of a future from `begin`."""
        self._note(error)
        if isinstance(error, BrokerError):
            return error
        return translated(self.server, error)

    def _note(self, error: BaseException) -> None:
        """Record the problem that an error indicates. A server that has become a replica ends the session."""
        cause = error.__cause__ or error
        if (trouble := trouble_of(self.server, cause)) is None:
            return
        self.trouble = trouble
        if isinstance(translated(self.server, cause), BrokerBlocked) and not self.lost.done():
            self.lost.set_result(BrokerUnavailable(trouble.text))

    async def _wait_for_replicas(self) -> None:
        """Wait until enough replicas have this session's writes. Raises BrokerUnavailable."""
        # Less than half of the publish timeout, after which the client considers the session silent.
        reached = await self.call("WAIT", self.wanted_replicas, max(1, int(self.timeout * 400)))
        if reached < self.wanted_replicas:
            raise BrokerUnavailable(
                f"the data written to Redis at {self.server} has reached {count(reached, 'replica')} so far;"
                f" wait_replicas requires {self.wanted_replicas}."
            )

    def _watch(self, lost: "asyncio.Future[BrokerError]") -> None:
        def on_lost(found: "asyncio.Future[BrokerError]") -> None:
            if not found.cancelled() and not self.lost.done() and not self._closed:
                self.lost.set_result(found.result())

        lost.add_done_callback(on_lost)

    async def _within(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.timeout):
                return await answer
        except BrokerError as error:
            self._note(error)
            raise
        except TimeoutError:
            raise BrokerUnavailable(f"Redis at {self.server} did not answer within {self.timeout:g} s.") from None


async def open_store(session: SessionParameters) -> Store:
    """Open a session with the server at the address. Raises UrlInvalid, BrokerUnavailable, BrokerRefused."""
    raw, address = await connect(session.address, session.timeout, _client_name(session), _prefix(session))
    connection = Connection(raw, str(address))
    store = Store(connection, address, session)
    try:
        await store.reload()
    except BaseException:
        with contextlib.suppress(BrokerError, RedisError):
            await store.close()
        raise
    return store


#: All scripts. Each session loads them, since Redis loses them when it restarts.
_SCRIPTS = ("publish", "work", "similar", "change", "due", "worker", "look", "purge", "delete")


#: The scripts whose changes must be on the replicas before the caller gets its confirm.
_PROMISED = ("publish", "change")


def _packed(job: Job) -> Any:
    """A step's job in the form that the scripts read."""
    return to_job(job.message, job.queue)


def _entry(id: bytes, fields: dict[bytes, bytes]) -> Entry:
    at = fields.get(b"at", b"")
    return Entry(
        place=_place_of(id),
        body=fields.get(b"blob", b""),
        topic=text_of(fields.get(b"topic", b"")),
        at=float(at) if _NUMBER.fullmatch(at) else 0.0,
    )


def _place_of(id: bytes) -> int:
    milliseconds, _, number = id.partition(b"-")
    return int(milliseconds + number.zfill(_DIGITS))


def _id_of(place: int) -> str:
    milliseconds, number = divmod(place, 10**_DIGITS)
    return f"{milliseconds}-{number}"


def _prefix(session: SessionParameters) -> str:
    """The prefix of all keys of an exchange. The braces keep them in one hash slot of a cluster."""
    return f"palermo:{{{session.exchange}}}:"


def _client_name(session: SessionParameters) -> str:
    """The name of our connections in CLIENT LIST, where it must not contain spaces."""
    return "palermo-" + "".join(sign if sign.isalnum() else "-" for sign in session.name)
