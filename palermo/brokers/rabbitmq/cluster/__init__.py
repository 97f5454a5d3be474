"""State shared by all sessions: queues, pauses, cancelled jobs and living workers."""
