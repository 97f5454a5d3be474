"""The `manage.py` commands."""
