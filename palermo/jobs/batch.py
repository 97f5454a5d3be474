"""The list that a batch job receives. The job can set an outcome for each item."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Maximum number of jobs in one batch.
MOST_BATCH = 1_000

#: Called with an item's position and whether it is done (or failed).
OnMark = Callable[[int, bool], None]


def ignore_mark(position: int, done: bool) -> None:
    """Ignore the mark."""


class Batch(list[T], Generic[T]):
    """The arguments of the batched jobs, one item per job. Unmarked items get the outcome of the call."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(items)
        self._size = len(self)
        self._on_mark: OnMark = ignore_mark
        #: For each marked position: its error, or None if it is done.
        self._marks: dict[int, BaseException | None] = {}

    def done(self, index: int) -> None:
        """Mark this item as done, even if the call raises or its process dies later. Raises IndexError."""
        self._mark(index, None)

    def fail(self, index: int, error: BaseException) -> None:
        """Mark only this item as failed with this error, as if its job had raised it.

        `palermo.Retry`, `Snooze` and `Discard` have the same effect as when raised. Raises IndexError, and TypeError if
        `error` is not an exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"batch.fail got {error!r}; give it an exception, such as ValueError('no such row').")
        self._mark(index, error)

    def outcomes(self, error: BaseException | None) -> list[BaseException | None]:
        """Return the error of each item, or None, after a call that returned or raised `error`."""
        self._on_mark = ignore_mark  # a thread that outlives the job must not mark items of the slot's next job
        return [self._marks.get(position, error) for position in range(self._size)]

    def _mark(self, index: int, error: BaseException | None) -> None:
        position = self._position(index)
        self._marks[position] = error
        self._on_mark(position, error is None)

    def _position(self, index: int) -> int:
        if not -self._size <= index < self._size:
            raise IndexError(f"the batch has no item {index}; it has {self._size} items.")
        return index % self._size


def watched(items: Iterable[T], on_mark: OnMark) -> Batch[T]:
    """Return a batch that reports its marks to `on_mark`."""
    batch = Batch(items)
    batch._on_mark = on_mark
    return batch
