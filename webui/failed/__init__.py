"""The failed jobs as the pages show them: an index of their queues, a view that updates it, and the long commands."""
