"""The SQLite file: how it is opened, its transactions and tables, its errors, and how processes wake each other."""
