"""Reading queues without consuming them, and the log of failed jobs in quorum queues."""
