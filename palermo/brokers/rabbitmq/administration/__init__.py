"""Purges, deletes and migrates queues, and diagnoses a server."""
