"""Integrations with Django, Flask, FastAPI, SQLAlchemy and Sentry, each in its own module."""
