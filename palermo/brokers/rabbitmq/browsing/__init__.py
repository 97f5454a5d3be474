"""Reads queues without taking anything out of them, and keeps the log of failed jobs in quorum queues."""
