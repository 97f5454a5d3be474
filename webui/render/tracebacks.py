"""Tracebacks and stacks for display, which emphasize the user's own frames.

In a traceback, sequences of library frames are folded. In the stack of a running job, the worker's frames that called
the job are folded. The text may come from an untrusted source. Lines that aren't frames are returned as plain lines,
and nothing is left out.
"""

import re
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

_FRAME = re.compile(r'^(?P<indent>[ |]*)File "(?P<path>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')

#: Matches the path of a library's file.
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3(\.\d+)?[/\\]|^<frozen ")


class Frame(Struct, frozen=True):
    path: str
    line: int
    function: str
    source: tuple[str, ...] = ()
    #: Whether the path looks like the user's own code.
    own: bool = True

    @property
    def folder(self) -> str:
        return self.path[: len(self.path) - len(self.file)]

    @property
    def file(self) -> str:
        return re.split(r"[/\\]", self.path)[-1]


class Part(Struct, frozen=True):
    """A displayed block: lines of text, an own frame, or folded library frames."""

    #: text, final (the error itself), frame or folded.
    kind: str
    lines: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = field(default_factory=tuple)


def parts_of(traceback: str) -> list[Part]:
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
    # Each piece has a list of lines that grows in place, so that a trace of 100,000 lines isn't copied 100,000 times.
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
    """Whether the line is between two chained errors, or says that lines were left out."""
    return line.startswith(("During handling of", "The above exception was", "Traceback (most recent", "…"))


def _tidied(frame: Frame) -> Frame:
    """Remove the indentation shared by all source lines of a frame."""
    indents = [len(line) - len(line.lstrip(" |")) for line in frame.source]
    shared = min(indents, default=0)
    return replace(frame, source=tuple(line[shared:] for line in frame.source))


def _with_something_open(parts: list[Part]) -> list[Part]:
    """If no part is an own frame, unfold the innermost library frame."""
    if any(part.kind == "frame" for part in parts):
        return parts
    for nth in range(len(parts) - 1, -1, -1):
        part = parts[nth]
        if part.kind == "folded":
            head = [replace(part, frames=part.frames[:-1])] if len(part.frames) > 1 else []
            return [*parts[:nth], *head, Part("frame", frames=part.frames[-1:]), *parts[nth + 1 :]]
    return parts


# -- the stacks of a running job, as written by faulthandler or the module traceback

#: faulthandler writes no comma before "in", and no source line.
_STACK_FRAME = re.compile(r'^ *File "(?P<path>[^"]*)", line (?P<line>\d+),? in (?P<function>.*)$')

#: Matches the file of a worker's frame that calls a job, directly or through others of these.
_WORKER = re.compile(r"[/\\]palermo[/\\](worker[/\\]child[/\\]\w+|jobs[/\\]definition)\.py$")

#: Matches the file of a frame of Python itself.
_PYTHON = re.compile(r"[/\\]lib[/\\]python3(\.\d+)?[/\\](?!(site|dist)-packages[/\\])|^<frozen ")

#: Written by faulthandler above a stack whose first frame is the innermost.
_NEWEST_FIRST = "(most recent call first):"


class Stack(Struct, frozen=True):
    """The stack of a thread or task, innermost frame first."""

    #: Its heading, or "".
    title: str
    #: The frames of the job and of functions that it called.
    job: tuple[Frame, ...]
    #: The worker's frames that called the job.
    worker: tuple[Frame, ...] = ()
    #: Lines that aren't frames.
    rest: tuple[str, ...] = ()


def stacks_of(text: str) -> list[Stack]:
    """Return the stacks in a text: first the job's own, then other threads that run its code, then the worker's."""
    found: list[tuple[str, list[Frame], list[str]]] = []
    for line in text.splitlines():
        frame = _STACK_FRAME.match(line)
        if frame is None and line and not line.startswith(" "):
            found.append((line, [], []))
            continue
        if not found:
            found.append(("", [], []))
        _, frames, rest = found[-1]
        if frame is not None:
            frames.append(Frame(frame["path"], int(frame["line"][:9]), frame["function"]))
        elif frames and line.strip():
            frames[-1] = replace(frames[-1], source=(*frames[-1].source, line.strip()))
        elif line.strip():
            rest.append(line.strip())
    return sorted((_divided(*each) for each in found), key=lambda stack: (not stack.job, not stack.worker))


def _divided(title: str, frames: Sequence[Frame], rest: Sequence[str]) -> Stack:
    """Separate the worker's frames of a stack from those of the job."""
    newest_first = list(frames) if title.endswith(_NEWEST_FIRST) else list(frames)[::-1]
    border = next((nth for nth, frame in enumerate(newest_first) if _WORKER.search(frame.path)), None)
    job = newest_first[:border]
    worker = [] if border is None else newest_first[border:]
    if worker and all(_PYTHON.search(frame.path) for frame in job):
        # a thread of the worker that waits for something
        job, worker = [], newest_first
    own = tuple(replace(frame, own=not _PYTHON.search(frame.path)) for frame in job)
    return Stack(title.removesuffix(_NEWEST_FIRST).rstrip(": "), own, tuple(worker), tuple(rest))
