"""Fair scheduling of tenants' jobs, on the leader's side."""
