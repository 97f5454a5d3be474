"""The tables' rows, read and changed by functions that run inside the caller's transaction."""
