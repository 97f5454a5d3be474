"""`manage.py palermo_worker` and `manage.py palermo`."""
