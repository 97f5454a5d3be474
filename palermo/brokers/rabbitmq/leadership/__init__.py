"""The leader: one session at a time that decides about scheduled, unique, limited and tenants' jobs for all others."""
