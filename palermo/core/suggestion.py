"""A suggestion for a misspelt name: the known name that is closest to it."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A blank and a question whether the closest known name was meant; "" if none is close."""
    import difflib  # for misspelt names only: it takes long to import

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
