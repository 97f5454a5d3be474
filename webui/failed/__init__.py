"""Failed jobs for the pages: an index of their queues, a view that updates it, and the long commands."""
