"""One call of a job, for one message or for a batch. Each message of a batch has its own result."""

from typing import Any

from palermo.core.lifecycle import BatchResult, Result
from palermo.core.message import Message
from palermo.jobs.batch import Batch
from palermo.jobs.definition import JobDefinition
from palermo.worker.child.run_failures import JobRun


class JobCall:
    """Collects the messages of one call and their results."""

    __slots__ = ("_batch", "_callable", "_refused", "batched", "definition")

    def __init__(self) -> None:
        #: The job; None until there is a message that it can be called for.
        self.definition: JobDefinition | None = None
        #: Whether the job takes a list, with one item for each message.
        self.batched = False
        self._batch: Batch[Any] = Batch()
        self._callable: list[tuple[int, Message, list[Any], dict[str, Any]]] = []
        self._refused: dict[int, Result] = {}

    def add(self, message: Message, definition: JobDefinition, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Add the next message: the job can be called for it, with these arguments."""
        self._callable.append((len(self._callable) + len(self._refused), message, args, kwargs))
        self.definition = definition
        self.batched = definition.batch is not None

    def refuse(self, result: Result) -> None:
        """Give the next message this result: the job cannot be called for it."""
        self._refused[len(self._callable) + len(self._refused)] = result

    @property
    def args(self) -> list[Any]:
        """The positional arguments. A batch has one: the list of its messages' arguments."""
        if not self.batched:
            return self._callable[0][2]
        self._batch = Batch((args or list(kwargs.values()))[0] for _, _, args, kwargs in self._callable)
        return [self._batch]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments."""
        return {} if self.batched else self._callable[0][3]

    def errors(self, error: BaseException | None) -> list[BaseException | None]:
        """The error of each message of a batch, after the call raised `error` or ended well; None for those done."""
        return self._batch.outcomes(error)

    def runs(self, instance: object | None = None, *, hooked: bool = True) -> list[JobRun]:
        """One run for each message, with its own arguments: a failure is decided for each message."""
        assert self.definition is not None
        return [
            JobRun(message, self.definition, [[*args, *kwargs.values()]], {}, instance, hooked=hooked)
            if self.batched
            else JobRun(message, self.definition, args, kwargs, instance, hooked=hooked)
            for _, message, args, kwargs in self._callable
        ]

    def ended(self, *results: Result) -> Result | BatchResult:
        """The result of the whole call. `results` are for the called messages: one for each, or one for all."""
        if len(self._callable) == len(results) == 1 and not self._refused and not self.batched:
            return results[0]
        called = results if len(results) != 1 else results * len(self._callable)
        found = self._refused | {number: one for (number, *_), one in zip(self._callable, called, strict=True)}
        if len(found) == 1 and not self.batched:
            return found[0]
        return BatchResult(tuple(found[number] for number in range(len(found))))
