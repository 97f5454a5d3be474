"""The rows of the tables, read and changed by functions inside the caller's transaction."""
