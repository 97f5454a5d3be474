"""The records of the log of keys: batches of key states, and ends of runs; and the keys that they add up to."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from palermo.core.unique_keys import Key
from palermo.core.unique_rules import RunOutcome

log = logging.getLogger("palermo.rabbitmq")

#: When all keys are written anew: the most keys in one message, and the bytes of bodies beyond which none is added.
_PART, _PART_BYTES = 500, 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run, as a worker writes it before it acknowledges the job."""

    key: str
    id: str
    how: RunOutcome
    #: The serial and starts that the answer to its start gave; None if the job needed no such answer.
    serial: int | None = None
    starts: int | None = None
    #: When the job runs again, and when this was written, in Unix seconds.
    run_at: float | None = None
    at: float | None = None

    def to_plain(self) -> dict[str, Any]:
        """The end as values that JSON has."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RunEnd":
        """The end that to_plain wrote. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            key=str(plain["key"]),
            id=str(plain["id"]),
            how=RunOutcome(plain["how"]),
            serial=plain.get("serial"),
            starts=plain.get("starts"),
            run_at=plain.get("run_at"),
            at=plain.get("at"),
        )


def fold(batches: Iterable[Mapping[str, Any]]) -> dict[str, Key]:
    """The keys as all these batches leave them. The batches may come in any order."""
    found = list(batches)
    whole: dict[int, list[Mapping[str, Any]]] = {}
    for batch in found:
        if "all" in batch:
            whole.setdefault(batch["n"], []).append(batch)
    anew = max((n for n, parts in whole.items() if len(parts) >= parts[0]["all"][1]), default=0)
    keys: dict[str, Mapping[str, Any]] = {}
    for batch in sorted(found, key=lambda one: int(one["n"])):
        if batch["n"] < anew or ("all" in batch and batch["n"] != anew):
            continue
        for name, plain in batch["keys"].items():
            if plain is None:
                keys.pop(name, None)
            else:
                keys[name] = plain
    return {name: key for name, plain in keys.items() if (key := _read(name, plain)) is not None}


def parts(keys: Iterable[Key]) -> Iterable[dict[str, Any]]:
    """All keys, in as many messages as they need; at least one message."""
    part: dict[str, Any] = {}
    size = 0
    for key in keys:
        if key.is_free:
            continue
        part[key.name] = key.to_plain()
        size += sum(len(kept.message.body) for kept in (key.next, key.holder and key.holder.content) if kept)
        if len(part) >= _PART or size > _PART_BYTES:
            yield part
            part, size = {}, 0
    yield part


def _read(name: str, plain: Mapping[str, Any]) -> Key | None:
    try:
        return Key.from_plain(plain)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("a key cannot be read key=%r error=%r", name, str(error))
        return None
