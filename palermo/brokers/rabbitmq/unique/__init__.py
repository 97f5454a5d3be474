"""The keys of unique jobs, on the leader's side."""
