"""The inspector, `palermo.inspector()`: a library that reads and changes queues, jobs and workers."""

from palermo.inspector.inspector import Inspector

__all__ = ["Inspector"]
