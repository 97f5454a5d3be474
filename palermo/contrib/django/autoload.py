"""The module that workers import for a Django project. It sets up Django, and then Palermo's app imports all jobs.

`manage.py palermo_worker` runs `palermo worker palermo.contrib.django.autoload` with DJANGO_SETTINGS_MODULE set.
"""

import django

django.setup()
