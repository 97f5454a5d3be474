"""The keys of unique jobs, on the leader's side, and the log that transfers them between leaders."""
