"""The title of a worker's parent process: what people who list processes see of the worker."""

import asyncio
from collections.abc import Callable

from palermo.core.text import count

#: The least seconds between two titles: an idle worker sets none, a busy one 20 a second.
_EVERY = 0.05


class ParentTitle:
    """Shows the worker's state soon after it has changed."""

    def __init__(self, show: Callable[[str], None], describe: Callable[[], str]) -> None:
        self._show = show
        self._describe = describe
        self._timer: asyncio.TimerHandle | None = None

    def update_soon(self) -> None:
        """Update the title soon: the state may have changed. Cheap, as it is called for every job."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self.update)

    def update(self) -> None:
        """Update the title now."""
        self._timer = None
        self._show(self._describe())

    def close(self) -> None:
        """Update it no more."""
        if self._timer is not None:
            self._timer.cancel()


def parent_title(*, state: str, queues: str, busy: int, slots: int) -> str:
    """The title of the parent process, by the worker's state."""
    match state:
        case "working":
            return f"palermo worker: {busy} of {count(slots, 'slot')} busy"
        case "idle":
            return f"palermo worker: waiting for {queues}"
        case "paused" | "quiet" | "stopping" if busy:
            return f"palermo worker: {state}, {busy} of {count(slots, 'slot')} busy"
        case _:
            return f"palermo worker: {state}"
