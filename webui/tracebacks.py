"""A traceback as a reader wants it: their own frames in view, runs of library frames folded.

Works on text that anybody may have written. What is not a Python traceback comes back as
plain lines, in their order, with nothing left out.
"""

import re
from dataclasses import dataclass, field, replace

_FRAME = re.compile(r'^(?P<indent>[ |]*)File "(?P<path>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')

#: What a path of somebody else's code has in it.
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3(\.\d+)?[/\\]|^<frozen ")


@dataclass(frozen=True, slots=True)
class Frame:
    """One place in the code."""

    path: str
    line: int
    function: str
    source: tuple[str, ...] = ()
    #: Whether it is the reader's own code, as far as its path tells.
    own: bool = True

    @property
    def folder(self) -> str:
        return self.path[: len(self.path) - len(self.file)]

    @property
    def file(self) -> str:
        return re.split(r"[/\\]", self.path)[-1]


@dataclass(frozen=True, slots=True)
class Part:
    """What is shown as one: lines of text, an own frame, or a run of library frames that is folded."""

    #: text, final (the error itself), frame or folded.
    kind: str
    lines: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = field(default_factory=tuple)


def parts_of(traceback: str) -> list[Part]:
    """The traceback in parts, in their order."""
    parts: list[Part] = []
    library: list[Frame] = []

    def unfold() -> None:
        if library:
            parts.append(Part("folded", frames=tuple(library)))
            library.clear()

    for piece in _pieces(traceback):
        if isinstance(piece, Frame) and not piece.own:
            library.append(piece)
            continue
        unfold()
        parts.append(Part("frame", frames=(piece,)) if isinstance(piece, Frame) else piece)
    unfold()
    return _with_something_open(parts)


def _pieces(traceback: str) -> list[Frame | Part]:
    pieces: list[Frame | Part] = []
    frame: Frame | None = None
    in_trace = False
    for line in traceback.rstrip("\n").split("\n"):
        found = _FRAME.match(line)
        if found:
            path = found["path"]
            frame = Frame(path, int(found["line"][:9]), found["function"] or "", own=not _LIBRARY.search(path))
            in_trace = True
            pieces.append(frame)
        elif frame is not None and line.startswith((" ", "|")) and line.strip():
            frame = replace(frame, source=(*frame.source, line.strip("\n")))
            pieces[-1] = frame
        else:
            frame = None
            kind = "final" if in_trace and line.strip() and not _is_bridge(line) else "text"
            in_trace = in_trace and kind == "final"
            last = pieces[-1] if pieces else None
            if isinstance(last, Part) and last.kind == kind:
                pieces[-1] = replace(last, lines=(*last.lines, line))
            else:
                pieces.append(Part(kind, (line,)))
    return [_tidied(piece) if isinstance(piece, Frame) else piece for piece in pieces]


def _is_bridge(line: str) -> bool:
    """Whether this stands between two chained errors, or says that something was left out."""
    return line.startswith(("During handling of", "The above exception was", "Traceback (most recent", "…"))


def _tidied(frame: Frame) -> Frame:
    """The frame's source without the indentation that all its lines share."""
    indents = [len(line) - len(line.lstrip(" |")) for line in frame.source]
    shared = min(indents, default=0)
    return replace(frame, source=tuple(line[shared:] for line in frame.source))


def _with_something_open(parts: list[Part]) -> list[Part]:
    """A traceback without own frames, with its innermost frame in view."""
    if any(part.kind == "frame" for part in parts):
        return parts
    for nth in range(len(parts) - 1, -1, -1):
        part = parts[nth]
        if part.kind == "folded":
            head = [replace(part, frames=part.frames[:-1])] if len(part.frames) > 1 else []
            return [*parts[:nth], *head, Part("frame", frames=part.frames[-1:]), *parts[nth + 1 :]]
    return parts
