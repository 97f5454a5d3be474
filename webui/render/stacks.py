"""A stack of a running job for readers: the frames of the job, and those of the worker that called it, to be folded.

The text is what a worker told, as faulthandler or the module traceback writes it. Lines that are not part of a stack
come back as they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from palermo.webui.render.tracebacks import Frame

#: faulthandler writes no comma before "in", and no line of source.
_FRAME = re.compile(r'^ *File "(?P<path>[^"]*)", line (?P<line>\d+),? in (?P<function>.*)$')

#: Matches the file of a worker's frame that calls a job, directly or through others of these.
_WORKER = re.compile(r"[/\\]palermo[/\\](worker[/\\]child[/\\]\w+|jobs[/\\]definition)\.py$")

#: Matches the file of a frame of Python itself.
_PYTHON = re.compile(r"[/\\]lib[/\\]python3(\.\d+)?[/\\](?!(site|dist)-packages[/\\])|^<frozen ")

#: What faulthandler writes above a stack whose first frame is the innermost one.
_NEWEST_FIRST = "(most recent call first):"


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of one thread or task, the most recent call first."""

    #: What stands above it; "" for nothing.
    title: str
    #: The frames of the job and of what it called.
    job: tuple[Frame, ...]
    #: The frames of the worker that called it.
    worker: tuple[Frame, ...] = ()
    #: Lines that are no frames.
    rest: tuple[str, ...] = ()


def stacks_of(text: str) -> list[Stack]:
    """The stacks in a text: first the job's own, then other threads that run its code, then those of the worker."""
    found: list[tuple[str, list[Frame], list[str]]] = []
    for line in text.splitlines():
        frame = _FRAME.match(line)
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
    """The stack, with the frames of the worker apart from those of the job."""
    newest_first = list(frames) if title.endswith(_NEWEST_FIRST) else list(frames)[::-1]
    border = next((nth for nth, frame in enumerate(newest_first) if _WORKER.search(frame.path)), None)
    job = newest_first[:border]
    worker = [] if border is None else newest_first[border:]
    if worker and all(_PYTHON.search(frame.path) for frame in job):
        # A thread of the worker, which waits for something.
        job, worker = [], newest_first
    own = tuple(replace(frame, own=not _PYTHON.search(frame.path)) for frame in job)
    return Stack(title.removesuffix(_NEWEST_FIRST).rstrip(": "), own, tuple(worker), tuple(rest))
