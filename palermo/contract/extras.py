"""Import packages that belong to an extra of Palermo: `with extra("web", "the web pages"): import jinja2`."""

from collections.abc import Iterator
from contextlib import contextmanager

from palermo.errors import UsageError


@contextmanager
def extra(name: str, needed_by: str) -> Iterator[None]:
    """Import packages of this extra. Raises UsageError, which says how to install it, if they are missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] in ("", "palermo"):
            raise
        raise UsageError(
            f"{needed_by} cannot be used without {missing}, which is not installed: pip install 'palermo[{name}]'."
        ) from error
