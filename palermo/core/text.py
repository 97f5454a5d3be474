"""Make text safe to print, write numbers in words, suggest similar names, and match names.

Text from jobs must be made safe: a job's name or error must not be able to control a terminal.
"""

import re
from collections.abc import Iterable, Sequence

#: C0 and C1 controls, DEL, lone surrogates, line and paragraph separators, and the marks that change text direction.
_UNSAFE = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_NEWLINES = r"\s*[\r\n]+\s*"


def safe(text: str, *, lines: bool = False) -> str:
    """The text with control characters escaped. With `lines`, newlines and tabs are kept."""
    return re.sub(_UNSAFE, lambda found: found[0] if lines and found[0] in "\n\t" else _escaped(found[0]), text)


def one_line(text: str) -> str:
    """The text on one line, safe to print."""
    # Fast path for nearly all table cells. The 15,000 cells of `palermo queues` with 3,000 queues: 2 ms, 84 without.
    if text.isascii() and text.isprintable():
        return text.strip()
    return safe(re.sub(_NEWLINES, " ", text.strip()))


def shown(value: object) -> str:
    """A table cell: nothing for None, otherwise text on one line."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(shown(item) for item in value)
        case _:
            return one_line(str(value))


def shorter(text: str, width: int) -> str:
    """The text cut to a width, with "…" in place of the missing part."""
    return text if len(text) <= width else text[: width - 1] + "…"


def count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`, `50,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some_of(names: Sequence[str], most: int = 5) -> str:
    """`a, b, c`. For more than `most` names, the first of them: `a, b, c and 1,200 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def duration(seconds: float) -> str:
    """`350 µs`, `12.5 ms`, `1.20 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1_000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def _escaped(character: str) -> str:
    code = ord(character)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return named.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A space and `did you mean …?` with the most similar known name, or "".

    `cutoff` is the minimum similarity, 0 to 1.
    """
    import difflib  # slow to import, and needed for misspelled names only

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def fits(name: str, wanted: str) -> bool:
    """Whether a name matches the text of a filter. Every filter uses this.

    `a` matches names that contain it, in any letter case; `*` stands for any characters; `a,b` matches names with
    either text; `=a` matches only the name a.
    """
    if wanted.startswith("="):
        return name == wanted[1:]
    folded = name.casefold()
    return any(_has(folded, text) for text in wanted.casefold().split(",") if text.strip())


def exactly(name: str) -> str:
    """The filter text that matches only this name."""
    return f"={name}"


def _has(name: str, text: str) -> bool:
    at = 0
    for part in text.strip().split("*"):
        at = name.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
