"""The failed jobs as the pages show them: a bounded view of the queue, and the long commands on it."""
