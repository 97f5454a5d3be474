"""The inspector: a library to look at queues, jobs and workers, and to act on them: `palermo.inspector()`."""

from palermo.inspector.inspector import Inspector

__all__ = ["Inspector"]
