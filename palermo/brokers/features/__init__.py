"""Features of the brokers that can change all their data in one step: they are written once, for SQLite and Redis."""
