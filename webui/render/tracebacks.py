"""A traceback for readers: their own frames are shown, and runs of library frames are folded.

The text may come from anybody. Lines that are not part of a Python traceback come back as
plain lines, in their order, and nothing is left out.
"""

import re
from dataclasses import dataclass, field, replace

_FRAME = re.compile(r'^(?P<indent>[ |]*)File "(?P<path>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')

#: Matches the path of a library's file.
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3(\.\d+)?[/\\]|^<frozen ")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback."""

    path: str
    line: int
    function: str
    source: tuple[str, ...] = ()
    #: Whether the path looks like the reader's own code.
    own: bool = True

    @property
    def folder(self) -> str:
        return self.path[: len(self.path) - len(self.file)]

    @property
    def file(self) -> str:
        return re.split(r"[/\\]", self.path)[-1]


@dataclass(frozen=True, slots=True)
class Part:
    """One displayed block: lines of text, an own frame, or a folded run of library frames."""

    #: text, final (the error itself), frame or folded.
    kind: str
    lines: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = field(default_factory=tuple)


def parts_of(traceback: str) -> list[Part]:
    """The parts of a traceback, in order."""
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
    # Each piece has a list of lines that grows in place: a trace of 100,000 lines must not copy them 100,000 times.
    pieces: list[tuple[Frame | Part, list[str]]] = []
    in_frame = in_trace = False
    for line in traceback.rstrip("\n").split("\n"):
        found = _FRAME.match(line)
        if found:
            path = found["path"]
            frame = Frame(path, int(found["line"][:9]), found["function"] or "", own=not _LIBRARY.search(path))
            in_frame = in_trace = True
            pieces.append((frame, []))
        elif in_frame and line.startswith((" ", "|")) and line.strip():
            pieces[-1][1].append(line)
        else:
            in_frame = False
            kind = "final" if in_trace and line.strip() and not _is_bridge(line) else "text"
            in_trace = in_trace and kind == "final"
            last = pieces[-1][0] if pieces else None
            if not isinstance(last, Part) or last.kind != kind:
                pieces.append((Part(kind), []))
            pieces[-1][1].append(line)
    return [
        _tidied(replace(piece, source=tuple(lines))) if isinstance(piece, Frame) else replace(piece, lines=tuple(lines))
        for piece, lines in pieces
    ]


def _is_bridge(line: str) -> bool:
    """Whether the line stands between two chained errors, or says that lines were left out."""
    return line.startswith(("During handling of", "The above exception was", "Traceback (most recent", "…"))


def _tidied(frame: Frame) -> Frame:
    """The frame, with the indentation that all source lines share taken off."""
    indents = [len(line) - len(line.lstrip(" |")) for line in frame.source]
    shared = min(indents, default=0)
    return replace(frame, source=tuple(line[shared:] for line in frame.source))


def _with_something_open(parts: list[Part]) -> list[Part]:
    """The parts; if none is an own frame, the innermost library frame is shown unfolded."""
    if any(part.kind == "frame" for part in parts):
        return parts
    for nth in range(len(parts) - 1, -1, -1):
        part = parts[nth]
        if part.kind == "folded":
            head = [replace(part, frames=part.frames[:-1])] if len(part.frames) > 1 else []
            return [*parts[:nth], *head, Part("frame", frames=part.frames[-1:]), *parts[nth + 1 :]]
    return parts
