"""The client as handles, results and messages see it. They are given one, and do not import the class."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from palermo.client.journal_watch import JournalWatch
from palermo.contract.serialization import Serializers
from palermo.settings.settings import Settings

T = TypeVar("T")


class JobClient(Protocol):
    """What `palermo.client.Client` is to its jobs: their settings and serializers, and a way to wait for them."""

    @property
    def settings(self) -> Settings:
        """The settings."""

    @property
    def serializers(self) -> Serializers:
        """The serializers of arguments and results."""

    @property
    def unpickled_job(self) -> Callable[..., Any]:
        """Makes the handle of a job that another process pickled; it asks the default client."""

    def watch(self, function: Callable[[JournalWatch], Coroutine[Any, Any, T]]) -> T:
        """See Client."""

    async def watch_async(self, function: Callable[[JournalWatch], Coroutine[Any, Any, T]]) -> T:
        """See Client."""
