"""The socket pairs between the worker's processes: frames, what is packed into them, and their two ends."""
