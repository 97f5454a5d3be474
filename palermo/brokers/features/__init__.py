"""Features shared by SQLite and Redis, brokers that can change all their data in one step."""
