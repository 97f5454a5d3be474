"""The commands that `manage.py` gets."""
