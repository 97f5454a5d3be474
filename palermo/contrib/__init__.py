"""Integrations with Django, Flask, FastAPI, SQLAlchemy and Sentry, one module each."""
