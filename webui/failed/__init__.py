"""Failed jobs for the pages: an index, a view that keeps it up to date, and long operations."""
