"""The socket pairs between the worker's processes: frames, their contents, and both ends."""
