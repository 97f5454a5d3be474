"""Loops that continue where the job's last run stopped: `palermo.resume`."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar, overload

from palermo.jobs.current import CurrentJob, current_job, saved_state, so_far
from palermo.jobs.saved import SavedState

T = TypeVar("T")


@overload
def resume(
    source: Callable[[Any], AsyncIterable[T]], *, key: Callable[[T], object], name: str = "", total: int | None = None
) -> AsyncIterable[T]: ...
@overload
def resume(
    source: Callable[[Any], Iterable[T]], *, key: Callable[[T], object], name: str = "", total: int | None = None
) -> Iterable[T]: ...
@overload
def resume(source: AsyncIterable[T], *, name: str = "", total: int | None = None) -> AsyncIterable[T]: ...
@overload
def resume(source: Iterable[T], *, name: str = "", total: int | None = None) -> Iterable[T]: ...
def resume(
    source: Callable[[Any], Iterable[T] | AsyncIterable[T]] | Iterable[T] | AsyncIterable[T],
    *,
    key: Callable[[T], object] | None = None,
    name: str = "",
    total: int | None = None,
) -> Iterable[T] | AsyncIterable[T]:
    """Iterate over the items of `source`; the next run of the job continues after the finished items.

    An item is finished when the loop asks for the next one. The position is kept when the worker stops, and when the
    job is retried or requeued. If the worker is killed, the items of the last second may be repeated.

    With `key`, `source` is a function. It is called with the key of the last finished item, or None at first, and
    returns the items after it. `key` is called with an item and returns at most 1 kB of JSON, or of a type that
    Palermo's JSON supports. If it returns None, the position is not saved. Without `key`, the position is the number
    of finished items, so `source` must have the same items in the same order in each run.

    Give each loop of a job its own `name`. A loop that has ended has no items in the next run. If `total` or
    `len(source)` is known, the loop reports progress. An asynchronous source needs `async for`. Outside a job, it
    only iterates. Raises TypeError if `source` and `key` don't fit, UsageError for a second loop of the same name or
    a loop in a batch job, and EncodeError for a key that can't be saved.
    """
    if callable(source) != (key is not None):
        wrong = "a function without key=" if callable(source) else "key= without a function"
        raise TypeError(
            f"palermo.resume got {source!r:.80}: {wrong}. Pass a function of the last key, and key=, a function of an"
            " item: palermo.resume(lambda last: rows_after(last), key=lambda row: row.id). Or pass only the items:"
            " palermo.resume(paths)."
        )
    if key is not None and not callable(key):
        raise TypeError(f"key= is {key!r:.80}; give a function of an item, such as lambda row: row.id.")
    if total is None and isinstance(source, Sized):
        total = len(source)
    return _Loop(source, key, name, total)


class _Loop(Generic[T]):
    """The object that `resume` returns, for `for` or `async for` depending on its source."""

    def __init__(self, source: Any, key: Callable[[T], object] | None, name: str, total: int | None) -> None:
        self._source = source
        self._key = key
        self._name = name
        self._total = total

    def __iter__(self) -> Iterator[T]:
        run = _Run(self._key, self._name, self._total)
        if run.ended:
            return
        items = self._items(run, Iterable)
        source = iter(islice(items, run.skipped, None) if run.skipped else items)
        while True:
            run.end_if_stopping()
            try:
                item = next(source)
            except StopIteration:
                break
            run.take(item)
            yield item
            run.done()
        run.end()

    async def __aiter__(self) -> AsyncIterator[T]:
        run = _Run(self._key, self._name, self._total)
        if run.ended:
            return
        source = aiter(self._items(run, AsyncIterable))
        skip = run.skipped
        while True:
            run.end_if_stopping()
            try:
                item = await anext(source)
            except StopAsyncIteration:
                break
            if skip:
                skip -= 1
                continue
            run.take(item)
            yield item
            run.done()
        run.end()

    def _items(self, run: "_Run[T]", kind: type) -> Any:
        """Return the unfinished items, or all items if the loop counts positions."""
        items = self._source if self._key is None else self._source(run.last)
        if isinstance(items, kind):
            return items
        if isinstance(items, Coroutine):
            items.close()
            advice = "Make it an asynchronous generator (async def with yield), or await it and pass the list."
        elif isinstance(items, Iterable | AsyncIterable):
            advice = f"Use `{'for' if kind is AsyncIterable else 'async for'}`."
        else:
            advice = "Return a list, a query or a generator."
        raise TypeError(f"the source of palermo.resume returned {items!r:.80}. {advice}")


class _Run(Generic[T]):
    """One loop in one run of a job. Outside a job it saves nothing."""

    def __init__(self, key: Callable[[T], object] | None, name: str, total: int | None) -> None:
        self._job: CurrentJob | None = current_job()
        self._state: SavedState | None = None if self._job is None else saved_state(self._job)
        place: Sequence[Any] = (0,) if self._state is None else self._state.begin(name)
        self._key = key
        self._name = name
        self._total = total
        self._item_key: object = None
        self._key_text = ""
        #: Whether the loop ended in an earlier run.
        self.ended = not place
        self._done = place[0] if place else 0
        #: The key of the last finished item, and the number of finished items. One of them is the position to continue
        #: from.
        self.last = place[1] if len(place) > 1 else None
        self.skipped = self._done if key is None else 0

    def end_if_stopping(self) -> None:
        """Raise the error that ends the run if the worker is stopping."""
        if self._state is not None:
            self._state.end_if_stopping()

    def take(self, item: T) -> None:
        """Report progress before an item, and compute its key now because the loop may change the item."""
        if self._state is None:
            return
        if self._key is not None:
            self._item_key = self._key(item)
            self._key_text = "" if self._item_key is None else self._state.key_text(self._item_key, self._name)
        self._progress()

    def done(self) -> None:
        """Record that the last item is finished. Called when the loop asks for the next one."""
        self._done += 1
        if self._state is not None and (self._key is None or self._key_text):
            self._state.move(self._name, self._done, self._item_key, self._key_text)

    def end(self) -> None:
        """Record that the source is exhausted."""
        if self._state is not None:
            self._state.end(self._name)
            self._total = self._total or self._done
            self._progress()

    def _progress(self) -> None:
        if self._job is not None:
            self._job.progress(*so_far(self._done, self._total, self._name))
