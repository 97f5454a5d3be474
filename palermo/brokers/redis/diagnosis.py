"""Check a Redis server as a broker: its persistence, its eviction policy, and whether it accepts writes."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from palermo.brokers.features.diagnosis import try_out, unreadable
from palermo.brokers.features.steps import text_of
from palermo.brokers.redis.store import Store
from palermo.contract.broker import Finding
from palermo.core.text import count
from palermo.errors import BrokerError, BrokerRefused, PalermoError

log = logging.getLogger("palermo.redis")

#: The oldest version with all commands that the scripts use.
_OLDEST = (6, 2)

#: Maximum difference between the server's clock and ours, in seconds.
_CLOCK_DIFFERENCE = 1.0

#: Fraction of its memory limit above which the server counts as nearly full.
_NEARLY_FULL = 0.8

#: The expected types of Palermo's keys, by name: single keys, and those per queue, tenant, worker, limited key and
#: workflow, by their prefix up to the colon. docs/internals/redis.md describes them. Tokens, `sent:…`, are missing,
#: because no key names them and they expire within minutes.
_ONCE = {
    **dict.fromkeys(("number", "version", "journal-bytes", "events-bytes"), "string"),
    **dict.fromkeys(("jobs", "queues", "marks", "tenant-jobs", "renewals", "claims", "deaths", "runs-at"), "hash"),
    **dict.fromkeys(("later-places", "keys", "unique-jobs", "limits", "permits", "waits", "recurring"), "hash"),
    **dict.fromkeys(("pauses", "cancels", "groups", "replays", "flows"), "hash"),
    **dict.fromkeys(("leases", "later", "later-ids", "keys-due", "key-holders"), "zset"),
    **dict.fromkeys(("recurring-due", "flows-due", "cancel-order"), "zset"),
    "keyed": "set",
    **dict.fromkeys(("journal", "events"), "stream"),
}
_OF_QUEUE = {"queue": "zset", "turns": "zset", "shares": "hash", "idle": "set"}
_OF_TENANT = {"tenant": "zset"}
_OF_WORKER = {"worker": "hash", "held": "hash", "taken": "set"}
_OF_LIMIT = {"permit": "set", "called": "set", "waiting": "zset"}
_OF_WORKFLOW = {"flow": "hash"}

#: Number of keys whose types are read in one batch.
_KEYS_AT_ONCE = 500


async def diagnose(store: Store) -> list[Finding]:
    """All findings; nothing is raised."""
    found: list[Finding] = []
    try:
        info = _fields(await store.call("INFO"))
        found += [
            _version(info),
            await _durability(store, info),
            _eviction(info),
            *_memory(info),
            *_replicas(info, store.wanted_replicas),
        ]
        found += await _foreign_keys(store)
        found += await unreadable(store)
        found.append(await try_out(store))
        known = await store.call("HLEN", store.key("queues"))
        found.append(Finding.ok("registry", f"readable, {count(known, 'queue')}"))
        found.append(await _clock(store))
    except PalermoError as error:
        found.append(Finding.problem("publish", str(error), "Fix this first."))
    return found


async def warn_of_eviction(store: Store) -> None:
    """Log a warning if the server evicts jobs when its memory is full. Needs the permission to read the setting."""
    with suppress(BrokerError):
        found = _eviction(_fields(await store.call("INFO", "memory")))
        if found.level == "problem":
            log.warning("%s; %s server=%s", found.text, found.advice, store.server)


def _version(info: Mapping[str, str]) -> Finding:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = info.get("valkey_version" if name == "Valkey" else "redis_version", "?")
    if tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2] if part.isdigit()) < _OLDEST:
        return Finding.problem("server version", f"{name} {version}", "Use Redis 6.2 or later, or Valkey.")
    return Finding.ok("server version", f"{name} {version}")


async def _durability(store: Store, info: Mapping[str, str]) -> Finding:
    if info.get("aof_enabled") != "1":
        return Finding.warning(
            "durability",
            "appendonly is off: a crash of the server loses all jobs since its last snapshot",
            "Set appendonly yes and appendfsync always in redis.conf.",
        )
    try:
        _, policy = await store.call("CONFIG", "GET", "appendfsync")
        _, pausing = await store.call("CONFIG", "GET", "no-appendfsync-on-rewrite")
    except (BrokerError, ValueError):
        return Finding.warning("durability", "the server does not report appendfsync", "Make sure that it is always.")
    if policy == b"always" and pausing == b"yes":
        return Finding.warning(
            "durability",
            "no-appendfsync-on-rewrite yes: while the server rewrites its file, a crash of the machine loses jobs",
            "Set no-appendfsync-on-rewrite no in redis.conf.",
        )
    if policy == b"always":
        return Finding.ok("durability", "appendfsync always: enqueued jobs survive a crash of the machine")
    return Finding.warning(
        "durability",
        f"appendfsync {policy.decode()}: a crash of the machine loses the newest jobs",
        "Set appendfsync always in redis.conf, where no job may be lost.",
    )


def _eviction(info: Mapping[str, str]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return Finding.ok(
            "eviction", "maxmemory-policy noeviction: jobs are refused, not lost, when the memory is full"
        )
    if policy.startswith("volatile-"):
        return Finding.warning(
            "eviction",
            f"maxmemory-policy {policy}: no job is lost when the memory is full, but a job may be stored or run twice",
            "Use a separate server for Palermo, with maxmemory-policy noeviction.",
        )
    level = Finding.problem if info.get("maxmemory", "0") != "0" else Finding.warning
    return level(
        "eviction",
        f"maxmemory-policy {policy}: jobs are lost when the memory is full",
        "Set maxmemory-policy noeviction in redis.conf.",
    )


def _memory(info: Mapping[str, str]) -> list[Finding]:
    limit, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
    text = f"{used / 1024**2:,.0f} MB used"
    if not limit:
        return [Finding.ok("memory", f"{text}, no limit set")]
    text = f"{text} of {limit / 1024**2:,.0f} MB"
    if used > limit * _NEARLY_FULL:
        return [Finding.warning("memory", text, "Give the server more memory, or start more workers.")]
    return [Finding.ok("memory", text)]


def _replicas(info: Mapping[str, str], wanted: int) -> list[Finding]:
    count = int(info.get("connected_slaves", "0"))
    if count < wanted:
        return [
            Finding.problem(
                "replicas", f"{count}, and wait_replicas={wanted}: no job can be stored", "Start the replicas."
            )
        ]
    if wanted:
        return [Finding.ok("replicas", f"{count}; each job is on {wanted} of them before its enqueue returns")]
    if not count:
        return []
    return [
        Finding.warning(
            "replicas",
            f"{count}, each a moment behind the primary server",
            "If a replica takes over, the newest jobs may be lost. To prevent this, add ?wait_replicas=1 to the URL.",
        )
    ]


async def _foreign_keys(store: Store) -> list[Finding]:
    """A problem for each key that another program has replaced by one of another type."""
    found, asked = list[Finding](), list[tuple[bytes, str]]()
    async for one in _keys(store):
        asked.append(one)
        if len(asked) >= _KEYS_AT_ONCE:
            found += await _of_another_type(store, asked)
            asked.clear()
    return found + await _of_another_type(store, asked)


async def _keys(store: Store) -> AsyncIterator[tuple[bytes, str]]:
    """Palermo's keys with their types, found from other keys of Palermo.

    The keyspace isn't scanned, since another program may have millions of keys there.
    """

    def named(kinds: Mapping[str, str], name: bytes) -> list[tuple[bytes, str]]:
        return [(store.key(f"{kind}:").encode() + name, type) for kind, type in kinds.items()]

    for name, type in _ONCE.items():
        yield store.key(name).encode(), type
    with suppress(BrokerRefused):  # this key has the wrong type itself
        async for queue, _ in store.scan("queues"):
            for one in named(_OF_QUEUE, queue):
                yield one
            with suppress(BrokerRefused):
                async for tenant in _members(store, store.key("turns:").encode() + queue):
                    for one in named(_OF_TENANT, b"%d:%b:%b" % (len(queue), queue, tenant)):
                        yield one
    with suppress(BrokerRefused):
        async for worker in _members(store, store.key("leases").encode()):
            for one in named(_OF_WORKER, worker):
                yield one
    with suppress(BrokerRefused):
        async for limit, _ in store.scan("limits"):
            for one in named(_OF_LIMIT, limit):
                yield one
    with suppress(BrokerRefused):
        async for workflow, _ in store.scan("flows"):
            for one in named(_OF_WORKFLOW, workflow):
                yield one


async def _members(store: Store, key: bytes) -> AsyncIterator[bytes]:
    """The members of a sorted set, read in batches."""
    for first in itertools.count(0, _KEYS_AT_ONCE):
        found = await store.call("ZRANGE", key, first, first + _KEYS_AT_ONCE - 1)
        for member in found:
            yield member
        if len(found) < _KEYS_AT_ONCE:
            return


async def _of_another_type(store: Store, keys: Sequence[tuple[bytes, str]]) -> list[Finding]:
    kinds = await asyncio.gather(*(store.call("TYPE", key) for key, _ in keys))
    return [
        Finding.problem(
            "keys",
            f"{text_of(key)!r} is a {kind.decode()} and must be a {wanted}: another program has overwritten it",
            "Restore it from a backup, or delete it (DEL) with its contents; Palermo then creates it again.",
        )
        for (key, wanted), kind in zip(keys, kinds, strict=True)
        if kind.decode() not in (wanted, "none")
    ]


async def _clock(store: Store) -> Finding:
    before = time.time()
    seconds, micros = await store.call("TIME")
    apart = int(seconds) + int(micros) / 1_000_000 - (before + time.time()) / 2
    if abs(apart) > _CLOCK_DIFFERENCE:
        return Finding.warning("clock", f"{apart:+.1f} s from the server's clock", "Synchronize both machines by NTP.")
    return Finding.ok("clock", "within a second of the server's clock")


def _fields(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
