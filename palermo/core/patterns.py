"""Which queues a worker serves, and in which order: the rules of `-q`.

As in Resque: the order given is strict priority; `*` stands for every queue not named
elsewhere, in alphabetical order; `file_*` is a glob; `!low` takes queues out, and given
alone means all the others. Queues of failed jobs are never served.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from palermo.core.topology import check_job_queue, is_failed
from palermo.errors import QueueNameInvalid

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """The queues a worker serves, as patterns in order of priority."""

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> "QueueSelection":
        """The selection written as `high,low`, or as its parts.

        Raises QueueNameInvalid for an empty selection, an empty part, or a name that no worker may serve.
        """
        parts = text.split(",") if isinstance(text, str) else list(text)
        patterns = tuple(part.strip() if isinstance(part, str) else part for part in parts)
        if not patterns or "" in patterns:
            raise QueueNameInvalid(
                f"queue list {text!r} has an empty name in it. Write names with commas between: -q high,low."
            )
        for pattern in patterns:
            name = pattern.removeprefix("!") if isinstance(pattern, str) else pattern
            if not isinstance(name, str) or not _GLOB.intersection(name):
                if isinstance(pattern, str) and pattern.startswith("!") and is_failed(name):
                    continue
                check_job_queue(name)
        return cls(patterns)

    @property
    def fixed(self) -> bool:
        """Whether only whole names are listed, so that queues made later cannot join."""
        return not any(pattern.startswith("!") or _GLOB.intersection(pattern) for pattern in self.patterns)

    def select(self, known: Iterable[str]) -> tuple[str, ...]:
        """The queues to serve, first come first served, out of those known.

        A queue listed by its whole name is served whether known or not.
        """
        names = sorted(name for name in set(known) if not is_failed(name))
        refused = [pattern[1:] for pattern in self.patterns if pattern.startswith("!")]
        wanted = [pattern for pattern in self.patterns if not pattern.startswith("!")] or ["*"]
        literal = {pattern for pattern in wanted if not _GLOB.intersection(pattern)}
        chosen: dict[str, None] = {}
        for pattern in wanted:
            if pattern in literal:
                chosen[pattern] = None
                continue
            for name in names:
                if name not in literal and fnmatchcase(name, pattern):
                    chosen.setdefault(name)
        return tuple(name for name in chosen if not any(fnmatchcase(name, pattern) for pattern in refused))

    def __str__(self) -> str:
        return ",".join(self.patterns)
