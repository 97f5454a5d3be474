"""One call of a job: for one message, or for all messages of a batch, each of which ends for itself."""

from typing import Any

from palermo.core.lifecycle import Batched, Result
from palermo.core.message import Message
from palermo.hooks import is_bare
from palermo.registry import JobDefinition
from palermo.worker.aftermath import Run


class Call:
    """Gathers what is to be called, and how each of its messages ends."""

    __slots__ = ("_callable", "_refused", "batched", "definition")

    def __init__(self) -> None:
        #: The job; None as long as there is no message that it can be called for.
        self.definition: JobDefinition | None = None
        #: Whether that takes a list of what was enqueued.
        self.batched = False
        self._callable: list[tuple[int, Message, list[Any], dict[str, Any]]] = []
        self._refused: dict[int, Result] = {}

    def add(self, message: Message, definition: JobDefinition, args: list[Any], kwargs: dict[str, Any]) -> None:
        """It can be called for this one, with these arguments."""
        self._callable.append((len(self._callable) + len(self._refused), message, args, kwargs))
        self.definition = definition
        self.batched = definition.batch is not None

    def refuse(self, result: Result) -> None:
        """It cannot be called for the next one, which ends so."""
        self._refused[len(self._callable) + len(self._refused)] = result

    @property
    def is_plain(self) -> bool:
        """Whether all that there is to do is to call one function once: no batch, no object, and no hook."""
        definition = self.definition
        return (
            definition is not None
            and not self.batched
            and len(self._callable) == 1
            and not self._refused
            and is_bare(definition)
        )

    @property
    def args(self) -> list[Any]:
        """What it is called with, by position; a batch is one argument, the list of those of its messages."""
        if not self.batched:
            return self._callable[0][2]
        return [[(args or list(kwargs.values()))[0] for _, _, args, kwargs in self._callable]]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The same by name."""
        return {} if self.batched else self._callable[0][3]

    def runs(self, instance: object | None = None, *, hooked: bool = True) -> list[Run]:
        """A run for each message, with its own arguments: what is decided about a failure is decided for each."""
        assert self.definition is not None
        return [
            Run(message, self.definition, [[*args, *kwargs.values()]], {}, instance, hooked=hooked)
            if self.batched
            else Run(message, self.definition, args, kwargs, instance, hooked=hooked)
            for _, message, args, kwargs in self._callable
        ]

    def ended(self, *results: Result) -> Result | Batched:
        """How all ended: what is given is for those that were called, one for each or one for all."""
        if len(self._callable) == len(results) == 1 and not self._refused and not self.batched:
            return results[0]
        called = results if len(results) != 1 else results * len(self._callable)
        found = self._refused | {number: one for (number, *_), one in zip(self._callable, called, strict=True)}
        if len(found) == 1 and not self.batched:
            return found[0]
        return Batched(tuple(found[number] for number in range(len(found))))
