"""The engine of views that are searched: a private, temporary SQLite database."""
