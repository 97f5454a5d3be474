"""Imports of packages that only an extra of Palermo installs: `with extra("web", "the web pages"): import jinja2`."""

from collections.abc import Iterator
from contextlib import contextmanager

from palermo.errors import UsageError


@contextmanager
def extra(name: str, needed_by: str) -> Iterator[None]:
    """Import what the extra of this name installs. Raises UsageError, with how to install it, where that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] in ("", "palermo"):
            raise
        raise UsageError(
            f"{needed_by} cannot be used without {missing}, which is not installed: pip install 'palermo[{name}]'."
        ) from error
