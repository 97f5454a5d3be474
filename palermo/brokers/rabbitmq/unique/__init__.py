"""The keys of unique jobs, on the leader's side, and the log that carries them from one leader to the next."""
