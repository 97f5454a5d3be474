"""The leader: one session at a time decides about scheduled, unique, limited and tenants' jobs for all others."""
