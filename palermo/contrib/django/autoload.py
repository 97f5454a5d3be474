"""The module that a worker imports for a Django project. It sets up Django, whose app imports all jobs.

`manage.py palermo_worker` is `palermo worker palermo.contrib.django.autoload`, with DJANGO_SETTINGS_MODULE set.
"""

import django

django.setup()
