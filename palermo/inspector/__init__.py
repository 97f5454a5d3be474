"""The inspector, `palermo.inspector()`, which reads and changes queues, jobs and workers."""

from palermo.inspector.inspector import Inspector

__all__ = ["Inspector"]
