"""The embedded broker: jobs in one SQLite file, for the processes on one machine."""

from palermo.brokers.sqlite.broker import SqliteBroker, open_sqlite

__all__ = ["SqliteBroker", "open_sqlite"]
