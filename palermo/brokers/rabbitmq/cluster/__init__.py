"""Shared knowledge of all sessions: queues, pauses, cancelled jobs and living workers."""
