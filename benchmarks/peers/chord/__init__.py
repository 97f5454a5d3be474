"""A chord beside peers: jobs that return their number, and one more that adds the numbers."""
