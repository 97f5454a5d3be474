"""Palermo in other people's frameworks: Django, Flask, FastAPI, SQLAlchemy and Sentry, a module each."""
